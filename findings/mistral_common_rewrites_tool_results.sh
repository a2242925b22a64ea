#!/bin/sh
# Results of tools in the prompts that mistral_common makes, with the tokenizers that it carries.
# Package: mistral-common 1.13.1. Guess: the model reads what the tool has written, whatever the version of the tokenizer.
# Seen: for v3 (SentencePiece and Tekken) a result that can be read as JSON is read and written anew: the version "1.10" becomes
# 1.1, "1e3" 1000.0, the empty output of a command {}, '"x"' loses its quotes, and of two equal keys the first is lost. "007" and
# "  text  " stay. v7 leaves all of them alone. Arguments of a call are written anew for each version (1.50 becomes 1.5, "\/" a
# slash), and arguments that were cut off become one JSON text in quotes. So the history is not what was sampled, and a tool that
# must compare versions shows other ones to a model of v3.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check "mistral-common[sentencepiece]==1.13.1"
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, FunctionCall, Tool, ToolCall
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

assert version("mistral-common") == "1.13.1", version("mistral-common")
TOOL = Tool(function=Function(name="f", description="d", parameters={"type": "object", "properties": {}}))
TOKENIZERS = {"v3": MistralTokenizer.v3(), "v3 Tekken": MistralTokenizer.v3(is_tekken=True), "v7": MistralTokenizer.v7()}


def prompt(name, arguments, result):
    call = ToolCall(id="abcdefghi", function=FunctionCall(name="f", arguments=arguments))
    messages = [UserMessage(content="q"), AssistantMessage(tool_calls=[call])]
    messages.append(ToolMessage(content=result, tool_call_id="abcdefghi", name="f"))
    request = ChatCompletionRequest(messages=messages, tools=[TOOL])
    return TOKENIZERS[name].encode_chat_completion(request).text.replace("▁", " ")


for result, v3 in (
    ("1.10", "1.1"),
    ("1e3", "1000.0"),
    ("", "{}"),
    ('"x"', '"x"'),
    ('{"a": 1, "a": 2}', '{"a": 2}'),
    ("007", '"007"'),
    ("  text  ", '"  text  "'),
):
    for name in TOKENIZERS:
        text = prompt(name, "{}", result).split("[TOOL_RESULTS]")[1].split("[/TOOL_RESULTS]")[0]
        seen = f'{{"content": {v3}, "call_id": "abcdefghi"}}' if name != "v7" else "abcdefghi[TOOL_CONTENT] " * bool(result) + result
        print(f"{name}, result {result!r}: {text.strip()}")
        assert text.strip() == seen.strip() or not result and text.endswith("[TOOL_CONTENT]"), (text, seen)
for arguments, written in (('{"a": 1.50}', '{"a": 1.5}'), (r'{"a": "b\/c"}', '{"a": "b/c"}'), ('{"a": "cut', r'"{\"a\": \"cut"')):
    for name in TOKENIZERS:
        text = prompt(name, arguments, "r")
        print(f"{name}, arguments {arguments}: {written}")
        assert f'"arguments": {written}' in text, text
EOP
