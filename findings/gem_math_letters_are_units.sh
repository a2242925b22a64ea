#!/bin/sh
# Answers with letters, graded by GEM's MathEnv.
# Package: gem-llm 0.1.0 with the packages below, which it does not all name. Guess: c+b is wrong for a+b.
# Seen: units are deleted from both sides, and single letters (a, c, d, g, h, l, m, s, t) and words such as am, pm, men are
# units. So c+b is right for a+b, d for c in x^2+c, c^2 for a^2, 10 pm for 10 am, 3 men for 3 days. Letters of other names
# (m+n and n+k) are compared.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check gem-llm==0.1.0 datasets==4.7.0 math-verify==0.9.0 \
        pylatexenc==2.11 numpy==2.4.0 regex==2026.11.15 sympy==1.14.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from gem.envs.math_env import MathEnv

assert version("gem-llm") == "0.1.0"
for gold, answer, correct in (
    ("a+b", "a+b", True),
    ("m+n", "n+k", False),
    ("a+b", "c+b", True),
    ("x^2+c", "x^2+d", True),
    ("a^2", "c^2", True),
    ("\\frac{a}{2}", "\\frac{h}{2}", True),
    ("10 am", "10 pm", True),
    ("3 days", "3 men", True),
):
    graded = MathEnv.check_correct(f"So it is \\boxed{{{answer}}}", gold)
    print(f"gold {gold}, answer {answer}: {bool(graded)}")
    assert bool(graded) == correct
EOP
