#!/bin/sh
# EvalScope's grader of ACEBench's calls (a port of ACEBench's own), on calls with numbers, switches and texts.
# Package: evalscope 1.14.1; only the file of its checks is needed.
# Guess: a value of each type is compared with the wanted one; only texts have some room, as the file's notes say.
# Seen: texts, lists and objects are compared. An integer, a float or a boolean needs the right type and no more: 999 is right
# for an amount of 100, `urgent=False` for True, and 9.0 for a rate of 1.5. Where a "number" of 2.5 is wanted, 9.75 is right. A
# text is right if the wanted one is in it: "bob and eve" for "bob".
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps evalscope==1.14.1
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import importlib.util
from importlib.metadata import distribution

package = distribution("evalscope")
assert package.version == "1.14.1"
path = package.locate_file("evalscope/benchmarks/acebench/checker.py")  # the package imports much more than it
spec = importlib.util.spec_from_file_location("checker", path)
checker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checker)

TYPES = {"to": "string", "amount": "integer", "rate": "float", "urgent": "boolean", "days": "number", "tags": "array"}
properties = {name: {"type": kind} for name, kind in TYPES.items()}
properties["tags"]["items"] = {"type": "string"}
tool = {"name": "pay", "parameters": {"type": "object", "properties": properties, "required": ["to", "amount"]}}
WANTED = {"to": "bob", "amount": 100, "rate": 1.5, "urgent": True, "days": 3, "tags": ["a", "b"]}


def right(wanted, **change):
    call, answer = {"pay": {**wanted, **change}}, {"pay": wanted}
    return checker.check_normal_answer([tool], [call], answer, "normal_single_turn_single_function")["valid"]


for change, expected in (
    ({}, True),
    ({"to": "eve"}, False),
    ({"to": "bob and eve"}, True),
    ({"tags": ["a", "c"]}, False),
    ({"amount": "100"}, False),
    ({"amount": 999}, True),
    ({"rate": 9.0}, True),
    ({"urgent": False}, True),
    ({"days": 7}, True),
    ({"days": 2.5}, False),
):
    seen = right(WANTED, **change)
    print(f"with {change}: {seen}")
    assert seen is expected
half = {**WANTED, "days": 2.5}
print(f"2.5 days wanted, 9.75 given: {right(half, days=9.75)}")
assert right(half, days=9.75) is True
EOP
