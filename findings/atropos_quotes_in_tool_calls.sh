#!/bin/sh
# atroposlib's own reader of tool calls (`parse_tool_call`, used by its environments with tools), on calls that json.dumps wrote.
# Package: atroposlib 0.4.0; only its module atroposlib.utils.tool_call_parser is needed.
# Guess: a call that is valid JSON is read as JSON reads it.
# Seen: before it is parsed, every ' becomes ". A program with a quoted text, or a sentence with an apostrophe, is "-ERROR-" with
# no arguments: a model is punished for a right call. Only calls without any apostrophe are read as they were written, and a
# call that is a Python dictionary and no JSON is accepted.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -qq --disable-pip-version-check --no-deps atroposlib==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import importlib.util
import json
import logging
from importlib.metadata import distribution
from pathlib import Path

found = distribution("atroposlib")
assert found.version == "0.4.0"
path = Path(found.locate_file("atroposlib/utils/tool_call_parser.py"))  # the package imports much more than it
spec = importlib.util.spec_from_file_location("tool_call_parser", path)
parser = importlib.util.module_from_spec(spec)
spec.loader.exec_module(parser)
logging.disable(logging.CRITICAL)
tools = [{"name": "python"}]
for text, same in (
    ('print("hi")', True),
    ("print('hi')", False),
    ("Bob's total is 5", False),
    ("x = 3", True),
):
    call = json.dumps({"name": "python", "arguments": {"code": text}})
    name, arguments, error = parser.parse_tool_call(f"<tool_call>\n{call}\n</tool_call>", tools)
    print(f"{text!r}: name {name}, arguments {arguments}, error {error}")
    assert (arguments == {"code": text}) is same
    assert same or (name, error) == ("-ERROR-", True)
name, arguments, error = parser.parse_tool_call("<tool_call>{'name': 'python', 'arguments': {'code': 'x'}}</tool_call>", tools)
print(f"a dictionary of Python: name {name}, arguments {arguments}, error {error}")
assert (name, arguments, error) == ("python", {"code": "x"}, False)
EOP
