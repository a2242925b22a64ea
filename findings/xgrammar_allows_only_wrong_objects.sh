#!/bin/sh
# JSON schemas of objects for which XGrammar's grammar allows only texts that the schema forbids.
# Packages: xgrammar 0.2.8 (vLLM 0.32.0 pins it; its check of schemas lets these pass), torch 2.13.0, jsonschema 4.26.0.
# Guess: a keyword that the grammar does not know is refused or left out, so that right answers are always possible.
# Seen: 1. A required name without a property of its own cannot be written: {"required": ["a"]} allows {} and nothing else. 2.
# `properties` beside `anyOf` are dropped: only the branches can be written, without the required properties beside them. 3. A key
# of patternProperties is the whole key: "^x_" allows the key "x_" alone. 4. `not`, and what stands beside a $ref are left out. So
# for 1 and 2 each answer that can be sampled is invalid, whatever the model, and nothing warns; a reward that checks the schema
# is 0 for ever.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check xgrammar==0.2.8 torch==2.13.0 jsonschema==4.26.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import json
from importlib.metadata import version

import jsonschema
import xgrammar

assert version("xgrammar") == "0.2.8", version("xgrammar")
BYTES, END = [bytes([byte]) for byte in range(256)], 256  # each byte is a token
INFO = xgrammar.TokenizerInfo([*BYTES, b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END])
COMPILER = xgrammar.GrammarCompiler(INFO)


def writable(schema, value):
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_json_schema(json.dumps(schema)))
    return all(matcher.accept_token(byte) for byte in json.dumps(value).encode()) and matcher.accept_token(END)


def valid(schema, value):
    return jsonschema.Draft202012Validator(schema).is_valid(value)


number, text = {"type": "integer"}, {"type": "string"}
branches = [{"properties": {"mail": text}, "required": ["mail"]}, {"properties": {"phone": text}, "required": ["phone"]}]
contact = {"type": "object", "properties": {"id": number}, "required": ["id"], "anyOf": branches}
pattern = {"type": "object", "patternProperties": {"^x_": number}, "additionalProperties": False}
for schema, right, wrong in (
    ({"type": "object", "required": ["a"]}, {"a": 1}, {}),
    ({"type": "object", "properties": {"a": number}, "required": ["a", "b"]}, {"a": 1, "b": 2}, {"a": 1}),
    (contact, {"id": 1, "mail": "m"}, {"mail": "m"}),
    (pattern, {"x_size": 1}, None),
    ({"not": text}, None, "a"),
    ({"$ref": "#/$defs/n", "minimum": 3, "$defs": {"n": number}}, None, 1),
):
    print(f"{json.dumps(schema)}\n   ", end="")
    if right is not None:
        print(f" valid {right} can be written: {writable(schema, right)}", end="")
        assert valid(schema, right) and not writable(schema, right)
    if wrong is not None:
        print(f" invalid {wrong!r} can be written: {writable(schema, wrong)}", end="")
        assert not valid(schema, wrong) and writable(schema, wrong)
    print()
EOP
