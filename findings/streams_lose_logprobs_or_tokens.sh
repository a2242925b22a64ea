#!/bin/sh
# The whole reply that two clients make of vLLM's stream with `logprobs` and `return_token_ids`.
# Packages: litellm 1.110.2 (stream_chunk_builder), openai 3.57.0 (ChatCompletionStreamState, behind its `stream()`).
# Guess: the whole has what the reply without a stream has: for each sampled token its id and its logprob.
# Seen: no client keeps both. litellm joins the token ids of all chunks and drops the logprobs, which are then not even None.
# openai joins the logprobs and drops the ids. A trainer that records through either gets half of what it needs, and no error.
# Without a usage chunk litellm also reports a count of tokens of its own: 55 for the 10 that were sampled.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check litellm==1.110.2 openai==3.57.0
    PYTHON="$folder/venv/bin/python"
fi
LITELLM_LOCAL_MODEL_COST_MAP=True "$PYTHON" -W ignore - 2>/dev/null <<'EOP'
from importlib.metadata import version

import litellm
from litellm.types.utils import ModelResponseStream
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

assert version("litellm") == "1.110.2" and version("openai") == "3.57.0"
litellm.suppress_debug_info = True


def call(index, arguments):
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def begin(index, name):
    function = {"name": name, "arguments": ""}
    return {"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": function}]}


deltas = [
    {"role": "assistant", "content": ""}, {"reasoning": "think "}, {"reasoning": "more"}, {"content": "Hi "},
    {"content": "you"}, begin(0, "f"), call(0, '{"a": '), call(0, "1}"), begin(1, "g"), call(1, '{"b": "x'), call(1, 'y"}'), {},
]  # fmt: skip
chunks = []
for number, delta in enumerate(deltas):
    sampled = 0 < number < len(deltas) - 1
    content = [{"token": f"t{number}", "logprob": -number / 8, "bytes": None, "top_logprobs": []}]
    choice = {"index": 0, "delta": delta, "logprobs": {"content": content} if sampled else None}
    choice |= {"finish_reason": None if number < len(deltas) - 1 else "tool_calls"}
    choice |= {"token_ids": [number] if sampled else None}
    chunks.append({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})
ids = list(range(1, len(deltas) - 1))

one = litellm.stream_chunk_builder([ModelResponseStream(**chunk) for chunk in chunks])
choice = one.choices[0].model_dump()
print(f"litellm: ids {choice.get('token_ids')}, logprobs {'logprobs' in choice}, usage {one.usage.completion_tokens}")
assert choice["token_ids"] == ids and "logprobs" not in choice
assert choice["message"]["content"] == "Hi you" and len(choice["message"]["tool_calls"]) == 2
assert one.usage.completion_tokens != len(ids)

state = ChatCompletionStreamState()
for chunk in chunks:
    state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
choice = state.get_final_completion().choices[0].model_dump()
logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
print(f"openai: ids {choice.get('token_ids')}, logprobs {logprobs}")
assert logprobs == [-number / 8 for number in ids] and choice.get("token_ids") is None
assert choice["message"]["content"] == "Hi you" and len(choice["message"]["tool_calls"]) == 2
EOP
