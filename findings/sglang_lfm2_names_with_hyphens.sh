#!/bin/sh
# Names of tools with a hyphen, as many MCP servers have them, under SGLang's parsers of calls in Python's form (LFM2, Llama 4).
# Package: llm-router-utils 0.8.1, which is SGLang's parsers without its engine; sglang 0.5.23 itself gave the same.
# Guess: a name that OpenAI's API and the chat templates take (letters, digits, _ and -) can be called.
# Seen: LFM2's template writes [look-up(q='x')], which is a subtraction for Python. The parser of LFM2 drops the call and its
# text: the reply is empty, with nothing called, and a call of another tool in the same turn is lost with it. That of Llama 4
# ("pythonic") shows such a call as text, and drops both where there is another one. Nothing is raised. So a model is paid 0 for
# right calls, by the name of the tool alone.
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
"$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import re
from importlib.metadata import version

from llm_router_utils.sglang.srt.entrypoints.openai.protocol import Tool
from llm_router_utils.sglang.srt.function_call.function_call_parser import FunctionCallParser

assert version("llm-router-utils") == "0.8.1"
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS = [Tool(type="function", function={"name": name, "parameters": PARAMETERS}) for name in ("look_up", "look-up")]


def read(form, text):
    """The text and the names of the calls, of a whole reply and of a streamed one."""
    whole, calls = FunctionCallParser(TOOLS, form).parse_non_stream(text)
    parser, streamed, names = FunctionCallParser(TOOLS, form), "", []
    for piece in re.findall(r"<\|\w+\|>|\w+|\W", text):
        content, items = parser.parse_stream_chunk(piece)
        streamed += content or ""
        names += [item.name for item in items if item.name]
    return (whole, [call.name for call in calls]), (streamed, names)


for calls, lfm2, pythonic in (
    ("[look_up(q='x')]", ("", ["look_up"]), ("", ["look_up"])),
    ("[look-up(q='x')]", ("", []), ("[look-up(q='x')]", [])),
    ("[look_up(q='x'), look-up(q='y')]", ("", []), ("", [])),
):
    for form, text, expected in (
        ("lfm2", f"<|tool_call_start|>{calls}<|tool_call_end|>", lfm2),
        ("pythonic", calls, pythonic),
    ):
        whole, streamed = read(form, text)
        print(f"{form}, {calls}: text {whole[0]!r}, calls {whole[1]}")
        assert whole == streamed == expected, (whole, streamed)
EOP
