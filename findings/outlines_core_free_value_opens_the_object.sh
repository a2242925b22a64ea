#!/bin/sh
# outlines-core's grammar for an object with a property of any value (`"value": {}`, as zod's z.any() and many MCP servers write
# it).
# Package: outlines-core 0.2.14, which vLLM 0.32.0 pins for its backend "outlines": it compiles the regular expression as it is.
# Guess: the property takes any JSON value, or the schema is refused, as {"title": "Value"} is.
# Seen: the choice of kinds of values has no brackets around it, so it divides the whole expression. No valid object can be
# written any more: not one of true, 1, "x", null, [] is possible in its place. What can be written is the object up to `true`,
# never closed, or a bare null, number or text in place of the object, or a closing bracket too many. Other properties may be
# missing. So no call of such a tool can be parsed, whatever the model, and nothing warns.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check outlines-core==0.2.14
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import json
import re
from importlib.metadata import version

from outlines_core.json_schema import build_regex_from_schema

assert version("outlines-core") == "0.2.14"


def allowed(value_schema, text):
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "value": value_schema}, "required": ["name", "value"]}
    return re.fullmatch(build_regex_from_schema(json.dumps(schema)), text) is not None


for text, free, integer in (
    *((json.dumps({"name": "x", "value": value}), False, value == 1) for value in (1, True, "y", None, [], {}, {"k": 1})),
    ('{"name": "x", "value": true', True, False),
    ("null", True, False),
    ("1", True, False),
    ('"text"', True, False),
    ('{"k": 1}}', True, False),
):
    seen = allowed({}, text), allowed({"type": "integer"}, text)
    print(f"{text}: allowed {seen[0]} for {{}}, {seen[1]} for an integer")
    assert seen == (free, integer and not isinstance(json.loads(text)["value"], bool))
try:
    build_regex_from_schema(json.dumps({"type": "object", "properties": {"value": {"title": "Value"}}, "required": ["value"]}))
except ValueError as problem:
    print(str(problem).splitlines()[0])
else:
    raise AssertionError('{"title": "Value"} is accepted')
EOP
