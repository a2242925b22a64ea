#!/bin/sh
# ai4math's verification of answers (`verify(gold, prediction)`) on plain answers.
# Packages: ai4math 0.1.0, sympy 1.14.0. Guess: two integers are equal or they are not, a letter is a name, and words are words.
# Seen: 1. Numbers need to agree to a millionth of themselves, or to 0.000001: 2598961 is right for 2598960 (5 cards of 52), and
# 0.0000009 for 0.0000003. 2. The line over repeating digits is taken off: 0.3 is right for 0.333..., which is then wrong for
# 1/3. 3. The letter a is an article, also as an answer: "the" is right for A, and b for a+b. 4. Words are products of letters:
# "on" is right for "no", and BA for AB. 5. What stands before = is dropped: y=3 is right for x=3. 6. The same set in another
# order is wrong.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check ai4math==0.1.0 sympy==1.14.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from ai4math.verify import verify

assert version("ai4math") == "0.1.0"
for gold, answer, expected in (
    ("42", "42", True),
    ("42", "43", False),
    ("2598960", "2598961", True),
    ("0.0000003", "0.0000009", True),
    (r"3\times 10^{-7}", r"8\times 10^{-7}", True),
    (r"0.\overline{3}", "0.3", True),
    (r"\frac{1}{3}", r"0.\overline{3}", False),
    ("B", "the", False),
    ("A", "the", True),
    ("a+b", "b", True),
    ("b+c", "c", False),
    ("no", "yes", False),
    ("no", "on", True),
    ("AB", "BA", True),
    ("x=3", "y=3", True),
    (r"\{1,2\}", r"\{2,1\}", False),
):
    result = verify(gold, answer)
    print(f"gold {gold}, answer {answer}: {bool(result)} ({result.method})")
    assert bool(result) is expected
EOP
