#!/bin/sh
# NeMo Evaluator's numeric_match, which grades its MGSM.
# Package: nemo-evaluator 0.3.0 (made for Python 3.12; its scorers run on 3.11 too); only its folder of scorers is needed.
# Guess: the last number of a reply is compared as a number, so that 5.0 is 5.
# Seen: zeros at the end are cut off as text, before the point too. 10, 100 and 1000 are all "1": 10 is correct for 1000, 2 for
# 200, and 45 for 450. For the target 0 nothing is left, so a reply without any number is correct, and an empty one. Of the
# targets from 0 to 999, 189 have such a twin below 1000. Its loader of MGSM cuts the targets in the same way.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --ignore-requires-python nemo-evaluator==0.3.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import sys
from importlib.metadata import distribution, version
from types import ModuleType

assert version("nemo-evaluator") == "0.3.0"
package = sys.modules["nemo_evaluator"] = ModuleType("nemo_evaluator")  # its own first file imports servers and clients
package.__path__ = [str(distribution("nemo-evaluator").locate_file("nemo_evaluator"))]
from nemo_evaluator.scoring import ScorerInput, numeric_match


def correct(reply, target):
    return numeric_match(ScorerInput(response=reply, target=target))["correct"]


for reply, target, seen in (
    ("Answer: 1000", 1000, True),
    ("Answer: 10", 1000, True),
    ("Answer: 2", 200, True),
    ("Answer: 45", 450, True),
    ("Answer: 0", 0, True),
    ("I do not know.", 0, True),
    ("", 0, True),
    ("Answer: 5.0", 5, True),
    ("Answer: 11", 10, False),
    ("I do not know.", 1, False),
):
    print(f"{reply!r} for {target}: {correct(reply, target)}")
    assert correct(reply, target) is seen
alike = [t for t in range(1000) if any(correct(str(other), t) for other in range(1000) if other != t)]
print(f"{len(alike)} of the targets below 1000 are matched by another number below 1000")
assert len(alike) == 189
EOP
