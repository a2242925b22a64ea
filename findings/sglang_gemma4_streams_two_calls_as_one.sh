#!/bin/sh
# Two calls of one tool in one turn, streamed by SGLang's parser of Gemma 4's calls.
# Package: llm-router-utils 0.8.1, which is SGLang's parsers without its engine; sglang 0.5.23 itself gave the same indices, and
# its server sends them as they are. Guess: calls have the indices 0, 1, ... in the order of the reply, as a client joins pieces
# by it.
# Seen: the index is the place of the tool in the request. Two calls of one tool have the same, so a client joins them to one
# call with two objects behind each other, which is no JSON; one call of the second tool has the index 1, and none has 0. The
# same reply is read right if it is not streamed, and the parsers of Qwen2.5 and GLM count. An agent that asks for two files at
# once, as its model was trained to do, gets neither.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check pydantic==2.14.4 orjson==3.13.0 openai==2.54.0 \
        partial-json-parser==0.2.1.1.post7
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps llm-router-utils==0.8.1
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from llm_router_utils.sglang.srt.entrypoints.openai.protocol import Tool
from llm_router_utils.sglang.srt.function_call.function_call_parser import FunctionCallParser

assert version("llm-router-utils") == "0.8.1"
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [Tool(type="function", function={"name": name, "parameters": PARAMETERS}) for name in ("read", "list")]


def pieces(form, name, path):
    """A call as the model's chat template writes it, one mark or word a piece."""
    if form == "gemma4":
        return ["<|tool_call>", "call:", name, "{", "path:", '<|"|>', path, '<|"|>', "}", "<tool_call|>"]
    if form == "qwen25":
        return ["<tool_call>", "\n", f'{{"name": "{name}", "arguments": ', f'{{"path": "{path}"}}', "}", "\n", "</tool_call>"]
    key = ["<arg_key>", "path", "</arg_key>", "\n"]
    return ["<tool_call>", f"{name}\n", *key, "<arg_value>", path, "</arg_value>", "\n", "</tool_call>"]


def streamed(form, calls):
    """The calls as a client joins them: by their index."""
    parser, joined = FunctionCallParser(TOOLS, form), {}
    for piece in [piece for call in calls for piece in [*pieces(form, *call), "\n"]]:
        for item in parser.parse_stream_chunk(piece)[1]:
            joined[item.tool_index] = joined.get(item.tool_index, "") + (item.parameters or "")
    return joined


for form in ("gemma4", "qwen25", "glm45"):
    two, second = streamed(form, [("read", "a"), ("read", "b")]), streamed(form, [("list", "a")])
    reply = "\n".join("".join(pieces(form, "read", path)) for path in "ab")
    whole = [call.parameters for call in FunctionCallParser(TOOLS, form).parse_non_stream(reply)[1]]
    print(f"{form}: two calls of one tool {two}, one of the second tool {second}, not streamed {whole}")
    assert whole == ['{"path": "a"}', '{"path": "b"}']
    if form == "gemma4":
        assert two == {0: '{"path": "a"}{"path": "b"}'} and list(second) == [1]
    else:
        assert two == {0: '{"path": "a"}', 1: '{"path": "b"}'} and list(second) == [0]
EOP
