#!/bin/sh
# A value for an optional parameter (`str | None`, `int | None`, as anyOf or a list of types) under SGLang's parser of
# MiniMax-M2's calls.
# Package: llm-router-utils 0.8.1, which is SGLang's parsers without its engine; sglang 0.5.23 itself gave the same values.
# Guess: the tool gets the value that the model wrote, and None where it wrote null.
# Seen: it gets None, whatever was written: "hello", "42" and a program alike, whole and streamed. null is the first of the
# types that are tried, and it takes everything. Parameters of one type are right, but for the text "None", which is None, too.
# The parser of Qwen3-Coder gives the text. So the model is paid for what a tool did without its argument, and the row for
# training still has the argument in it.
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
import json
from importlib.metadata import version

from llm_router_utils.sglang.srt.entrypoints.openai.protocol import Tool
from llm_router_utils.sglang.srt.function_call.function_call_parser import FunctionCallParser

assert version("llm-router-utils") == "0.8.1"
TEXT = {"type": "string"}
SCHEMAS = {
    "str": TEXT,
    "anyOf": {"anyOf": [TEXT, {"type": "null"}]},
    "list": {"type": ["string", "null"]},
    "int": {"type": ["integer", "null"]},
}
FORMS = {
    "minimax-m2": [
        "<minimax:tool_call>",
        '\n<invoke name="write">\n<parameter name="text">',
        "VALUE",
        "</parameter>\n</invoke>\n",
        "</minimax:tool_call>",
    ],
    "qwen3_coder": [
        "<tool_call>",
        "\n<function=write>\n<parameter=text>\n",
        "VALUE",
        "\n</parameter>\n</function>\n",
        "</tool_call>",
    ],
}


def read(form, schema, value):
    """The argument of a whole reply and of a streamed one."""
    parameters = {"type": "object", "properties": {"text": schema}}
    tool = Tool(type="function", function={"name": "write", "parameters": parameters})
    pieces = [value if piece == "VALUE" else piece for piece in FORMS[form]]
    (whole,) = FunctionCallParser([tool], form).parse_non_stream("".join(pieces))[1]
    parser = FunctionCallParser([tool], form)
    streamed = "".join(call.parameters for piece in pieces for call in parser.parse_stream_chunk(piece)[1])
    return json.loads(whole.parameters)["text"], json.loads(streamed)["text"]


for form in FORMS:
    for name, schema in SCHEMAS.items():
        for value in ("42",) if name == "int" else ("hello", "42", "print(1)", "None"):
            seen = read(form, schema, value)
            print(f"{form}, {name}: {value!r} is {seen}")
            lost = form == "minimax-m2" and (name != "str" or value == "None")
            kept = int(value) if name == "int" else value
            assert seen == ((None, None) if lost else (kept, kept))
EOP
