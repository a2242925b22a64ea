#!/bin/sh
# HELM's final_number_exact_match, the main metric of GSM8K in HELM Lite, on right answers in a sentence.
# Package: crfm-helm 0.5.16; only two functions of one file are needed. Guess: "Returns 1 iff the final number in gold and pred
# match", so the gold 18 is matched by each reply whose last number is 18.
# Seen: a comma by itself is a number too. "The answer is 18." and "The answer is 18 eggs." are 1; "The answer is 18 eggs, as
# asked." is 0: its last "number" is the comma, which is then deleted. A comma that touches the number is part of it and does no
# harm. So a model's score falls with the words that it writes behind the number.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps crfm-helm==0.5.16
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import ast
import re
from importlib.metadata import distribution
from pathlib import Path

package = distribution("crfm-helm")
assert package.version == "0.5.16"
file = Path(package.locate_file("helm/benchmark/metrics/evaluate_reference_metrics.py"))
wanted = {"exact_match", "final_number_exact_match"}  # the file itself imports all metrics of HELM
tree = ast.parse(file.read_text(encoding="utf-8"))
tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
names = {"re": re}
exec(compile(tree, str(file), "exec"), names)

for gold, reply, expected in (
    ("18", "The answer is 18.", 1),
    ("18", "The answer is 18 eggs.", 1),
    ("18", "The answer is 18, as asked.", 1),
    ("18", "The answer is 18 eggs, as asked.", 0),
    ("18", "She makes $18 a day, so the answer is \\boxed{18}.", 1),
    ("18", "The answer is $18 per day, which is what she makes.", 0),
    ("1,000", "It is 1000 (a thousand, that is).", 0),
    ("18", "The answer is 17 eggs.", 0),
):
    seen = names["final_number_exact_match"](gold, reply)
    print(f"gold {gold}, reply {reply!r}: {seen}")
    assert seen == expected
EOP
