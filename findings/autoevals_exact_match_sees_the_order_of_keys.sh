#!/bin/sh
# autoevals' ExactMatch and JSONDiff on the arguments of calls, which they take as objects or as JSON texts.
# Package: autoevals 0.4.1 with what its scorers import. Guess: ExactMatch is 1 where the values are equal, and 0 where a type
# differs ("deep equality", "Normalizes both values"); JSONDiff tells an absent argument from null.
# Seen: 1. ExactMatch writes both objects as JSON and compares the texts, keys in the order that they have. So a right call is 0
# if the model names its arguments in another order, as in the example of its own page ("Different order but same content",
# "1.0"), and [1.0] is not [1]. Outside of objects all is a text: 1 matches "1", and None, a model without an answer, matches
# "None". 2. JSONDiff is 1.0 for {"limit": null} and {}, and an amount of 1900 for 1000 has 0.69.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check autoevals==0.4.1
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from autoevals import ExactMatch, JSONDiff

assert version("autoevals") == "0.4.1"
for output, expected, match in (
    ({"a": 1, "b": 2}, {"a": 1, "b": 2}, 1),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, 0),
    ({"name": "John", "age": 30}, '{"age": 30, "name": "John"}', 0),
    ([1.0], [1], 0),
    (1, "1", 1),
    (True, "True", 1),
    (None, "None", 1),
):
    seen = ExactMatch()(output, expected).score
    print(f"ExactMatch of {output!r} and {expected!r}: {seen}")
    assert seen == match
for output, expected, low, high in (
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, 1, 1),
    ({"limit": None}, {}, 1, 1),
    ({"amount": 1900}, {"amount": 1000}, 0.68, 0.70),
):
    seen = JSONDiff()(output, expected).score
    print(f"JSONDiff of {output} and {expected}: {seen:.2f}")
    assert low <= seen <= high
EOP
