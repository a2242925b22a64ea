#!/bin/sh
# Texts as arguments under SGLang's parser of GLM-4.5's and GLM-4.6's calls (`--tool-call-parser glm45`), whole and streamed.
# Package: llm-router-utils 0.8.1, which is SGLang's parsers without its engine; sglang 0.5.23 itself gave the same values.
# Guess: a parameter of type string gets the letters between the tags, whether the reply is streamed or not.
# Seen: streamed it does. Of a whole reply the letters are read as JSON, and the value is made a text again, as Python prints
# it: 1.10 is "1.1", true "True", null "None", 1e5 "100000.0", and quotes around a text are gone. A text that holds an object
# has other spaces in it. What is no JSON, such as 007 or 2024-01-02, is kept. So a version, a flag or the new text of a file is
# not what the model wrote, and an agent that was trained on whole replies meets other arguments when it is served streamed.
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
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [Tool(type="function", function={"name": "write", "parameters": PARAMETERS})]
for written, of_whole in (
    ("1.10", "1.1"),
    ("true", "True"),
    ("null", "None"),
    ("1e5", "100000.0"),
    ('"quoted"', "quoted"),
    ('{"a":1}', '{"a": 1}'),
    ("007", "007"),
    ("2024-01-02", "2024-01-02"),
    ("hello", "hello"),
):
    # the form in which GLM-4.6's chat template writes a call
    pieces = ["<tool_call>", "write\n", "<arg_key>", "text", "</arg_key>", "\n", "<arg_value>", *written, "</arg_value>", "\n"]
    pieces.append("</tool_call>")
    (call,) = FunctionCallParser(TOOLS, "glm45").parse_non_stream("".join(pieces))[1]
    parser = FunctionCallParser(TOOLS, "glm45")
    streamed = "".join(call.parameters for piece in pieces for call in parser.parse_stream_chunk(piece)[1])
    whole, streamed = json.loads(call.parameters)["text"], json.loads(streamed)["text"]
    print(f"{written}: whole {whole!r}, streamed {streamed!r}")
    assert (whole, streamed) == (of_whole, written)
EOP
