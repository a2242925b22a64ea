#!/bin/sh
# mathruler's grade_answer, the grader of verl's Geometry3K, on fractions and exponents of more than one term.
# Packages: mathruler 0.1.0, sympy 1.14.0, pylatexenc 2.10. Guess: "sympy can simplify the difference between the expressions to
# 0" is about the two expressions as LaTeX groups them, so (3+sqrt(5))/2 is right in either order of its terms, and 3+sqrt(5)/2
# is another number.
# Seen: the braces are dropped before SymPy reads anything. \frac{3+\sqrt{5}}{2} is 3+sqrt(5)/2, 2^{n+1} is 2^n+1, x^{1/2} is
# x/2. So 3+\frac{\sqrt{5}}{2}, \frac{1}{x}+1 for \frac{1}{x+1}, and 2^n+1 are paid; \frac{\sqrt{5}+3}{2}, \frac{x}{2}+1 for
# \frac{x+2}{2}, and \frac{-1+\sqrt{5}}{2} for \frac{\sqrt{5}-1}{2} are not. Roots keep what is under them.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check sympy==1.14.0 pylatexenc==2.10 tqdm==4.70.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps mathruler==0.1.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from mathruler.grader import extract_boxed_content, grade_answer

assert version("mathruler") == "0.1.0"
for gold, answer, equal, paid in (
    (r"\frac{3+\sqrt{5}}{2}", r"\frac{3+\sqrt{5}}{2}", True, True),
    (r"\frac{3+\sqrt{5}}{2}", r"\frac{\sqrt{5}+3}{2}", True, False),
    (r"\frac{3+\sqrt{5}}{2}", r"3+\frac{\sqrt{5}}{2}", False, True),
    (r"\frac{\sqrt{5}-1}{2}", r"\frac{-1+\sqrt{5}}{2}", True, False),
    (r"\frac{x+2}{2}", r"\frac{x}{2}+1", True, False),
    (r"\frac{x+2}{2}", "x+1", False, True),
    (r"\frac{1}{x+1}", r"\frac{1}{x}+1", False, True),
    (r"\frac{1}{2x}", r"\frac{1}{2}x", False, True),
    ("2^{n+1}", "2^n+1", False, True),
    ("2^{n+1}", r"2 \cdot 2^n", True, False),
    ("x^{1/2}", r"\frac{x}{2}", False, True),
    (r"\sqrt{x+1}", r"\sqrt{1+x}", True, True),
    (r"\sqrt{x+1}", r"\sqrt{x}+1", False, False),
):
    seen = grade_answer(extract_boxed_content(rf"So it is \boxed{{{answer}}}."), gold)
    print(f"{answer} for {gold}: equal {equal}, paid {seen}")
    assert seen == paid
EOP
