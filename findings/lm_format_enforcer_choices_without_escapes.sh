#!/bin/sh
# Choices (enum, const) with quotes or line ends in a JSON schema, under lm-format-enforcer's parser.
# Package: lm-format-enforcer 0.11.3 (vLLM 0.32.0 pins it as a backend). Guess: a choice is written as JSON writes it.
# Seen: quotes and line ends stand in the text as they are. For the choice 'say "hi"' the object {"a": "say "} is complete: a
# value that is none of the choices, and `\"` cannot be written. A choice with a line end can be written with a bare line end
# only, which is no JSON, so a call with it cannot be parsed. Backslashes are escaped, and read well. A text without choices
# takes all of these.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check lm-format-enforcer==0.11.3
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import json
from importlib.metadata import version

from lmformatenforcer import JsonSchemaParser

assert version("lm-format-enforcer") == "0.11.3"


def complete(schema, text):
    """Whether the text can be written and be the end."""
    parser = JsonSchemaParser({"type": "object", "properties": {"a": schema}, "required": ["a"]})
    for letter in text:
        if letter not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(letter)
    return parser.can_end()


for choice, written, seen in (
    ('say "hi"', r'{"a": "say \"hi\""}', False),
    ('say "hi"', '{"a": "say "}', True),
    ("one\ntwo", r'{"a": "one\ntwo"}', False),
    ("one\ntwo", '{"a": "one\ntwo"}', True),
    ("C:\\temp", r'{"a": "C:\\temp"}', True),
):
    schema = {"enum": [choice, "other"]}
    try:
        value = repr(json.loads(written)["a"])
    except json.JSONDecodeError:
        value = "no JSON"
    print(f"choice {choice!r}: {written!r} ({value}) can be written: {complete(schema, written)}")
    assert complete(schema, written) is seen
    if value != "no JSON":
        assert complete({"type": "string"}, written)
EOP
