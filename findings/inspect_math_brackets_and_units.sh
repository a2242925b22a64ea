#!/bin/sh
# inspect_ai's math() scorer on intervals and units.
# Packages: inspect-ai 0.3.285, latex2sympy2_extended 1.11.0, antlr4-python3-runtime 4.13.2. Guess: an open interval is not a
# closed one, and 12 m are not 12 cm, or both are out of its reach and refused.
# Seen: [1,2] is CORRECT against (1,2), but [1,2) is not, nor is (-\infty,3] against (-\infty,3): brackets count only where the
# two ends differ or one is infinite. "12 m" is CORRECT against "12 cm", "5 oranges" is not against "5 apples". "50%" is
# INCORRECT against "50", where math-verify pays it.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check inspect-ai==0.3.285 latex2sympy2_extended==1.11.0 \
        antlr4-python3-runtime==4.13.2
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import asyncio
from importlib.metadata import version
from types import SimpleNamespace

from inspect_ai.scorer import Target, math

assert version("inspect-ai") == "0.3.285", version("inspect-ai")


async def verdicts(pairs):
    score = math()
    for target, answer, seen in pairs:
        state = SimpleNamespace(output=SimpleNamespace(completion=rf"\boxed{{{answer}}}"))
        value = (await score(state, Target(target))).value
        print(f"target {target}, answer {answer}: {value}")
        assert value == seen


asyncio.run(
    verdicts(
        [
            ("(1,2)", "[1,2]", "C"),
            ("(-1,3)", "[-1,3]", "C"),
            ("(1,2)", "[1,2)", "I"),
            (r"(-\infty,3)", r"(-\infty,3]", "I"),
            ("12 cm", "12 m", "C"),
            ("5 apples", "5 oranges", "I"),
            ("50", r"50\%", "I"),
        ]
    )
)
EOP
