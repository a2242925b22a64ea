#!/bin/sh
# NeMo Evaluator's fuzzy_match, which grades its DROP.
# Package: nemo-evaluator 0.3.0 (made for Python 3.12; its scorers run on 3.11 too); only its folder of scorers is needed.
# Guess: a reply is correct if its answer is nearly one of the targets. An empty reply, as of a model that was cut off in its
# thoughts, is wrong.
# Seen: a reply is correct if it is a part of the target, or the target a part of it, letter by letter. The empty text is a part
# of each, so silence, "..." and "The" solve every task. So does a reply that is one letter of the target, and one that has the
# target's digits in a longer number: "It was in 2013." for 3.
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
from nemo_evaluator.scoring import ScorerInput, fuzzy_match

for reply, target, seen in (
    ("Answer: Chicago Bears", "Chicago Bears", True),
    ("Answer: Detroit Lions", "Chicago Bears", False),
    ("", "Chicago Bears", True),
    ("...", "Chicago Bears", True),
    ("The", "Chicago Bears", True),
    ("g", "Chicago Bears", True),
    ("", "3", True),
    ("It was in 2013.", "3", True),
    ("Answer: 4", "3", False),
):
    # the target and the list of targets, as its DROP hands them over
    sample = ScorerInput(response=reply, target=target, metadata={"correct_answers": [target]})
    print(f"{reply!r} for {target!r}: {fuzzy_match(sample)['correct']}")
    assert fuzzy_match(sample)["correct"] is seen
EOP
