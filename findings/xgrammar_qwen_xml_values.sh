#!/bin/sh
# XGrammar's form of Qwen's XML calls (style "qwen_xml") against the chat templates of the models.
# Packages: xgrammar 0.2.8, torch 2.13.0. Guess: a grammar takes what the model's own template writes, and counts the letters
# of a value as a parser does.
# Seen: 1. It refuses `True`, `None` and `['x']`, as the templates of Qwen3.5-0.8B, Nemotron 3 and Step 3.5 write them in the
# history: under tool_choice "required" such a model cannot write as it does otherwise. 2. `minLength` counts the line ends
# around a value, which every parser takes away: "a" and even the empty text pass minLength 2. glm_xml counts right.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q xgrammar==0.2.8 torch==2.13.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import json
from importlib.metadata import version

import xgrammar

assert version("xgrammar") == "0.2.8", version("xgrammar")
BYTES = [bytes([byte]) for byte in range(256)]
END = 256
INFO = xgrammar.TokenizerInfo([*BYTES, b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END])
COMPILER = xgrammar.GrammarCompiler(INFO)


def accepts(style, schema, text):
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    arguments = {"type": "json_schema", "json_schema": parameters, "style": style}
    grammar = COMPILER.compile_structural_tag(json.dumps({"type": "structural_tag", "format": arguments}))
    matcher = xgrammar.GrammarMatcher(grammar)
    return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(END)


def qwen(value):  # as the template writes an argument
    return f"<parameter=x>\n{value}\n</parameter>\n"


def glm(value):
    return f"<arg_key>x</arg_key>\n<arg_value>{value}</arg_value>"


for schema, written, in_json in (
    ({"type": "boolean"}, "True", "true"),
    ({"type": ["integer", "null"]}, "None", "null"),
    ({"type": "array", "items": {"type": "string"}}, "['x']", '["x"]'),
):
    seen = accepts("qwen_xml", schema, qwen(written)), accepts("qwen_xml", schema, qwen(in_json))
    print(f"qwen_xml takes {written}: {seen[0]}, {in_json}: {seen[1]}")
    assert seen == (False, True)
for value in ("", "a", "ab"):
    schema = {"type": "string", "minLength": 2}
    seen = accepts("qwen_xml", schema, qwen(value)), accepts("glm_xml", schema, glm(value))
    print(f"minLength 2, {value!r}: qwen_xml {seen[0]}, glm_xml {seen[1]}")
    assert seen == (True, len(value) >= 2)
EOP
