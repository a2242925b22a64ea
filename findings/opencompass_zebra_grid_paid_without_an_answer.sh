#!/bin/sh
# OpenCompass' evaluator of ZebraLogic's grids on replies with no table, or with a draft before the final one.
# Package: opencompass 0.5.4; only the file of that data set is needed. Guess: cell accuracy is the share of the cells of the
# reply's table that are right, so a reply without a table has none.
# Seen: if the reply's table has another number of rows than the solution, each cell of the solution that stands anywhere in the
# text is right. A reply that only repeats the puzzle, or gives up after it, has 100 for cells and for whole grids, as the
# puzzle names all values. So has a wrong table that stands twice (a draft, and a final one); once, it has 33 for cells.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps opencompass==0.5.4
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import importlib
import sys
from importlib.metadata import distribution
from types import ModuleType, SimpleNamespace

package = distribution("opencompass")
assert package.version == "0.5.4"
for name in ("opencompass", "opencompass.datasets"):  # these import all data sets and torch
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(package.locate_file(name.replace(".", "/")))]
for name in ("datasets", "opencompass.registry", "opencompass.datasets.base", "opencompass.openicl.icl_evaluator"):
    module = sys.modules[name] = ModuleType(name)  # what the file takes from these: two bases and two registers
    module.BaseEvaluator = module.BaseDataset = object
    module.load_dataset = None
    module.ICL_EVALUATORS = module.LOAD_DATASET = SimpleNamespace(register_module=lambda: lambda item: item)
Evaluator = importlib.import_module("opencompass.datasets.zebralogic").ZebraLogicGridEvaluator

SOLUTION = {"header": ["House", "Name", "Pet"], "rows": [["1", "Eric", "cat"], ["2", "Arnold", "dog"]]}
PUZZLE = "There are 2 houses, 1 to 2. The people are Arnold and Eric. They own a dog or a cat. Eric does not own the dog."


def table(*rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in (["House", "Name", "Pet"], ["---"] * 3, *rows))


RIGHT = table(["1", "Eric", "cat"], ["2", "Arnold", "dog"])
WRONG = table(["1", "Arnold", "dog"], ["2", "Eric", "cat"])
for name, reply, cells, whole in (
    ("the right table", RIGHT, 100, 100),
    ("no table, other words", "I do not know.", 0, 0),
    ("the puzzle, and no answer", PUZZLE + " I cannot solve it.", 100, 100),
    ("a wrong table", WRONG, 2 / 6 * 100, 0),
    ("the same wrong table twice", f"Draft:\n{WRONG}\nFinal:\n{WRONG}", 100, 100),
):
    seen = Evaluator().score([reply], [SOLUTION])
    print(f"{name}: {seen['cell_accuracy']:.0f} of cells, {seen['perfect_accuracy']:.0f} of grids")
    assert (seen["cell_accuracy"], seen["perfect_accuracy"]) == (cells, whole)
EOP
