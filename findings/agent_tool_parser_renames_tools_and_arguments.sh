#!/bin/sh
# agent-tool-parser's default reading of the calls in a model's text, by each of its two engines (Rust and Python).
# Package: agent-tool-parser 0.1.3. Guess: a call that is valid JSON in <tool_call> tags is read as it was written, prose has no
# calls, and both engines read the same.
# Seen: 1. Names of tools are written small, and some are replaced: getWeather is getweather, Edit is str_replace. Arguments are
# renamed, whatever the tool has: cmd to command, file to path, old to old_str, and of two arguments that get one name one
# is lost. 2. Thoughts are cut out of arguments too, as of a program that writes <think>. 3. An object with a name, in the answer's
# prose, is a call: {"name": "Anna", "city": "Rome"} calls anna. A call that was cut is run with half a path. 4. Calls in
# Python's form, as Llama 4 and LFM2 write them, are a call of "[f" with merged arguments for Rust, and none for Python. 5. Calls
# as Qwen3-Coder, GLM-4.5, Kimi K2 and DeepSeek-V3.1 write them are none at all, without an error.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check agent-tool-parser==0.1.3
    PYTHON="$folder/venv/bin/python"
fi
cat >"$folder/read.py" <<'EOP'
import json
from importlib.metadata import version

import agent_tool_parser

assert version("agent-tool-parser") == "0.1.3"


def tagged(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


RUST = agent_tool_parser.ACCELERATED
SEP = "<｜tool▁sep｜>"
NONE = []
for text, expected in (
    (tagged("search", q="a", n=1.5), [("search", {"q": "a", "n": 1.5})]),
    (tagged("getWeather", city="Rome"), [("getweather", {"city": "Rome"})]),
    (tagged("Edit", text="a"), [("str_replace", {"text": "a"})]),
    (tagged("run", cmd="ls", old="a"), [("run", {"command": "ls", "old_str": "a"})]),
    (tagged("copy", file="a", path="b"), [("copy", {"path": "b"})]),
    (tagged("write", text="<think>a</think>b"), [("write", {"text": "b"})]),
    ('Her record is {"name": "Anna", "city": "Rome"}.', [("anna", {"city": "Rome"})]),
    ('<tool_call>\n{"name": "list", "arguments": {"path": "/home/al', [("list", {"path": "/home/al"})]),
    ('[f(a=1), g(b="x, y")]', [("[f", {"a": "1)", "g(b": "x, y"})] if RUST else NONE),
    ("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", NONE),
    ("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", NONE),
    ('<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>', NONE),
    (f'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f{SEP}{{"a": 1}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', NONE),
):
    seen = [(call.name, call.args) for call in agent_tool_parser.try_parse_tool_calls(text)]
    print(f"{'Rust' if RUST else 'Python'}: {text!r}: {seen}")
    assert seen == expected
print("the engine is", "Rust" if RUST else "Python")
EOP
AGENT_TOOL_PARSER_NO_EXT=0 "$PYTHON" "$folder/read.py" >"$folder/rust" || { cat "$folder/rust"; exit 1; }
AGENT_TOOL_PARSER_NO_EXT=1 "$PYTHON" "$folder/read.py" >"$folder/python" || { cat "$folder/python"; exit 1; }
cat "$folder/rust" "$folder/python"
grep -q "the engine is Rust" "$folder/rust"
grep -q "the engine is Python" "$folder/python"
