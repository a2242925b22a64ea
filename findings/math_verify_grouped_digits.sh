#!/bin/sh
# math-verify on numbers as models write them in LaTeX.
# Packages: math-verify 0.9.0 with latex2sympy2_extended 1.11.0. Guess: `12\,345`, the usual way to set thousands apart, is
# 12345 or is not read at all; a full stop at the end of a box does no harm; the base of `1010_2` counts.
# Seen: groups of digits behind a thin space, a space or `\;` are ADDED, as if they were a mixed number: `\boxed{12\,345}` is
# paid against 357 and not against 12345, and `1\,000` is paid against 0. `12{,}345` and `12,\!345` are right. `\boxed{12.}`
# is read as text and not paid against 12. The base of a number is dropped: 1010_2 equals 1010_3.
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
for target, answer, seen in (
    ("12345", r"12\,345", False),
    ("357", r"12\,345", True),
    ("357", r"12\;345", True),
    ("0", r"1\,000", True),
    ("12345", r"12{,}345", True),
    ("12345", r"12,\!345", True),
    ("12", "12.", False),
    ("12", "12", True),
    ("1010_3", "1010_2", True),
):
    paid = verify(parse(f"${target}$"), parse(rf"\boxed{{{answer}}}"))
    print(f"target {target}, answer {answer}: {'paid' if paid else 'not paid'}")
    assert paid is seen
EOP
