#!/bin/sh
# math-verify on targets that are words, as data sets of word problems hold them ("even", "AB", a name).
# Packages: math-verify 0.9.0 with latex2sympy2_extended 1.11.0. Guess: a word is compared as a text, or refused.
# Seen: outside \text a word is the product of its letters (and "e" is Euler's number), so its letters may come in any order:
# "neve" is paid against "even", "BA" against "AB", "Mit" against "Tim". With \text on both sides it is compared as a text.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check math-verify==0.9.0 latex2sympy2_extended==1.11.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
from importlib.metadata import version

from math_verify import parse, verify

assert (version("math-verify"), version("latex2sympy2_extended")) == ("0.9.0", "1.11.0")
print("even is read as", parse("$even$")[0])
for target, answer, seen in (
    ("$even$", r"\boxed{neve}", True),
    (r"\boxed{AB}", r"\boxed{BA}", True),
    (r"\boxed{Tim}", r"\boxed{Mit}", True),
    (r"\boxed{\text{even}}", r"\boxed{\text{neve}}", False),
    (r"\boxed{\text{even}}", r"\boxed{even}", True),
):
    paid = verify(parse(target), parse(answer))
    print(f"target {target}, answer {answer}: {'paid' if paid else 'not paid'}")
    assert paid is seen
EOP
