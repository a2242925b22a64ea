#!/bin/sh
# exact_match_scorer of Strands' evaluation package, the tool that its trajectory judge is given, on trajectories with more steps.
# Packages: strands-agents-evals 1.7.0, strands-agents 1.62.0. Guess: "1 indicates a perfect match", and of the three scorers the
# two others are the ones that "allow extra actions", so a step too many costs something here.
# Seen: the expected steps alone are counted, place by place. A trajectory that begins as expected is 1.0 whatever follows, a
# deletion or a loop too. One more step at the start is 0.0, though all expected ones follow; in_order_match_scorer has 1.0 for it.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check strands-agents-evals==1.7.0 strands-agents==1.62.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from strands_evals.tools.evaluation_tools import exact_match_scorer, in_order_match_scorer

assert version("strands-agents-evals") == "1.7.0"
EXPECTED = ["search", "read", "answer"]
for actual, exact, in_order in (
    (EXPECTED, 1.0, 1.0),
    (["search", "answer"], 1 / 3, 1 / 3),
    ([*EXPECTED, "delete", "delete", "search"], 1.0, 1.0),
    (["list", *EXPECTED], 0.0, 1.0),
):
    seen = exact_match_scorer(actual, EXPECTED), in_order_match_scorer(actual, EXPECTED)
    print(f"{actual} for {EXPECTED}: exact match {seen[0]:.2f}, in order {seen[1]:.2f}")
    assert seen == (exact, in_order)
EOP
