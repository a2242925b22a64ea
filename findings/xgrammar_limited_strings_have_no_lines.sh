#!/bin/sh
# Strings with a limit or a pattern under XGrammar's grammars of JSON schemas, vLLM's default for structured outputs and calls.
# Packages: xgrammar 0.2.8 (vLLM 0.32.0 pins it; its check of schemas lets these pass), llguidance 1.7.6, torch 2.13.0.
# Guess: `maxLength` limits how long a text may be, a pattern is searched in it (as JSON Schema says), and nothing else changes.
# Seen: with minLength, maxLength or a pattern a string has no escapes at all: no line end, no quote, no backslash. So a program
# or a file in a field with maxLength 4000 is written on one line and without quotes, whatever the model would write; the same
# field without the limit has both. `minLength: 1`, which says "not empty", does it too. A pattern must match all of the text, and
# one with a class of all characters takes no line end. llguidance, vLLM's other engine, takes all of these.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check xgrammar==0.2.8 llguidance==1.7.6 torch==2.13.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import json
from importlib.metadata import version

import llguidance
import xgrammar

assert version("xgrammar") == "0.2.8" and version("llguidance") == "1.7.6"
BYTES, END = [bytes([byte]) for byte in range(256)], 256  # each byte is a token
INFO = xgrammar.TokenizerInfo([*BYTES, b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END])
COMPILER = xgrammar.GrammarCompiler(INFO)


class Tokens:
    eos_token_id, bos_token_id, tokens, special_token_ids = END, None, [*BYTES, b"</s>"], [END]

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokens()))


def accepted(schema, value):
    text = json.dumps(value).encode()
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_json_schema(json.dumps(schema)))
    first = all(matcher.accept_token(byte) for byte in text) and matcher.accept_token(END)
    other = llguidance.LLMatcher(TOKENIZER, llguidance.LLMatcher.grammar_from_json_schema(schema), log_level=0)
    return first, other.consume_tokens(list(text)) and other.is_accepting()


LIMIT, FILLED, ANY = {"maxLength": 4000}, {"minLength": 1}, {"pattern": "^[\\s\\S]+$"}
for limits, value, seen in (
    ({}, 'x = "a"\nprint(x)', True),
    (LIMIT, "x = 1", True),
    (LIMIT, "x = 1\nprint(x)", False),
    (LIMIT, 'x = "a"', False),
    (LIMIT, "C:\\temp", False),
    (FILLED, "x = 1\nprint(x)", False),
    (ANY, "x = 1\nprint(x)", False),
    ({"pattern": "@"}, "@", True),
    ({"pattern": "@"}, "me@here", False),
):
    got = accepted({"type": "string", **limits}, value)
    print(f"{limits or 'no limit'}, {value!r}: xgrammar {got[0]}, llguidance {got[1]}")
    assert got == (seen, True)
EOP
