#!/bin/sh
# rolloutlib's graders of AIME and GSM8K on answers as models write them, and its environments on Python 3.11, which it declares.
# Packages: rolloutlib 0.2.0, gymnasium 1.4.0, pydantic 2.14.0. Guess: what stands in the last box is the answer, as one number.
# Seen: 1. Marks of LaTeX, commas and spaces are taken out first, and the first row of digits is the answer: 3/4 in a box is right
# for 34, 5*sqrt(2) for 52, "3, 4" for 34. 2. The first box counts: a model that corrects itself is wrong. 3. "The answer is
# 9 + 9 = 18" is 9, and "The answer is: 18. Check: 2 * 9" is 9, since a colon behind "is" is not expected. 4. On Python 3.11 no
# environment of messages can be made: its messages are typing's TypedDict, which pydantic refuses before Python 3.12.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check rolloutlib==0.2.0 gymnasium==1.4.0 pydantic==2.14.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import sys
from importlib.metadata import version

from pydantic import PydanticUserError
from rolloutlib.evals.benchmarks.math import grade_aime, grade_gsm8k, gsm8k

assert version("rolloutlib") == "0.2.0"
for grade, gold, answer, expected in (
    (grade_aime, "34", r"\boxed{34}", 1),
    (grade_aime, "34", r"\boxed{\frac{3}{4}}", 1),
    (grade_aime, "34", r"\boxed{3, 4}", 1),
    (grade_aime, "52", r"\boxed{5\sqrt{2}}", 1),
    (grade_aime, "7", r"\boxed{5} is too small, so it is \boxed{7}.", 0),
    (grade_aime, "5", r"\boxed{5} is too small, so it is \boxed{7}.", 1),
    (grade_gsm8k, "9 + 9 = 18\n#### 18", "The answer is 18.", 1),
    (grade_gsm8k, "9 + 9 = 18\n#### 18", "The answer is 9 + 9 = 18.", 0),
    (grade_gsm8k, "9 + 9 = 18\n#### 18", "The answer is: 18. Check: 2 * 9", 0),
    (grade_gsm8k, "10 / 2 = 5\n#### 5", "#### 10/2", 0),
):
    score = grade(answer, gold)
    print(f"{grade.__name__}, gold {gold!r}, answer {answer!r}: {score.value}, read as {score.metadata['extracted']}")
    assert score.value == expected
benchmark = gsm8k([{"question": "9 + 9?", "answer": "#### 18"}])
try:
    benchmark.make_env(benchmark.items[0])
except PydanticUserError as error:
    print(f"Python {sys.version_info.major}.{sys.version_info.minor}: {str(error).splitlines()[0]}")
    assert sys.version_info < (3, 12)
else:
    assert sys.version_info >= (3, 12)
EOP
