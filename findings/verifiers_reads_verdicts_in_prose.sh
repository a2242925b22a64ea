#!/bin/sh
# The judge and the comparison of printed output in verifiers 0.4 (its v1 interface).
# Package: verifiers 0.4.0. Guess: a verdict is read where the judge states it, and an answer without one is an error, as the
# docstring of the reference judge says; numbers that a program printed are compared with a relative tolerance.
# Seen: 1. The last label anywhere in the text decides. With the default labels yes and no, "Yes. There is no difference." is a
# no, and "No. To say yes would be wrong." is a yes. With the labels A and B (right, wrong), the article in "I choose B. It is
# a clear mistake." makes it an A. Only behind "Verdict:" is it read
# where it stands, and the default prompt asks for the bare label.
# 2. compare_stdout_results has an absolute tolerance of 0.001: "0 0" is equal to "0.0005 0.0001", and 0.001 to 0.002.
# PYTHON may name an interpreter that has this package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check verifiers==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
from importlib.metadata import version

from verifiers.v1.judges.reference import ReferenceJudgeConfig
from verifiers.v1.utils.score import compare_stdout_results, parse_judge_choice

assert version("verifiers") == "0.4.0", version("verifiers")
assert ReferenceJudgeConfig().choices == ("yes", "no")
for labels, text, seen in (
    (("yes", "no"), "Yes. There is no difference.", "no"),
    (("yes", "no"), "No. To say yes would be wrong.", "yes"),
    (("yes", "no"), "Verdict: yes. There is no difference.", "yes"),
    (("A", "B"), "I choose B. It is a clear mistake.", "A"),
    (("A", "B"), "It is a wrong answer.", "A"),
):
    verdict = parse_judge_choice(text, labels)
    print(f"{labels}: {text!r} is read as {verdict}")
    assert verdict == seen
for printed, expected, seen in (("0 0", "0.0005 0.0001", True), ("0.001", "0.002", True), ("0.001", "0.003", False)):
    equal = compare_stdout_results(printed, expected)
    print(f"printed {printed}, expected {expected}: {'equal' if equal else 'not equal'}")
    assert equal is seen
EOP
