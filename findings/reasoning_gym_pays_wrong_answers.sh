#!/bin/sh
# What the scorers of reasoning-gym pay, over all of its 106 data sets.
# Package: reasoning-gym 0.1.25. Guess: the entry's own answer earns 1, another one less, and no text of a model raises.
# Seen: game_of_life_halting compares bool(text) with bool(text): every answer earns 1.0. complex_arithmetic pays "nan" 1.0.
# gsm_symbolic pays the negative number 1.0. chain_sum pays the wrong sign by its share of the text: "-" before the answer
# earns more than any other wrong number. prime_factorization raises ValueError at a full stop behind the right answer. Five
# data sets (boxnet, graph_color, propositional_logic, rubiks_cube, rush_hour) have None as the answer, which earns 0.
# PYTHON may name an interpreter that has this package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check reasoning-gym==0.1.25
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

import reasoning_gym

assert version("reasoning-gym") == "0.1.25", version("reasoning-gym")


def scores(name, answer):
    """What the data set pays for an answer made from the right one, entry by entry."""
    data = reasoning_gym.create_dataset(name, size=10, seed=3)
    return [round(data.score_answer(answer(entry["answer"]), entry), 2) for entry in data]


for name, form, answer in (
    ("game_of_life_halting", "nonsense", lambda right: "x"),
    ("game_of_life_halting", "the other one", lambda right: "False" if right == "True" else "True"),
    ("complex_arithmetic", "nan", lambda right: "nan"),
    ("gsm_symbolic", "with a minus", lambda right: f"-{right}"),
):
    seen = scores(name, answer)
    print(f"{name}, {form}: {seen}")
    assert seen == [1.0] * 10
minus, zero = scores("chain_sum", lambda right: f"-{right}"), scores("chain_sum", lambda right: "0")
print("chain_sum, with a minus:", minus)
assert min(minus) > max(zero)
data = reasoning_gym.create_dataset("prime_factorization", size=1, seed=3)
right = data[0]["answer"]
assert data.score_answer(right, data[0]) == 1.0
try:
    data.score_answer(f"{right}.", data[0])
except ValueError as error:
    print(f"prime_factorization, {right}.: ValueError: {error}")
else:
    raise AssertionError("a full stop no longer raises")
for name in ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"):
    data = reasoning_gym.create_dataset(name, size=3, seed=7)
    seen = [(entry["answer"], data.score_answer(entry["answer"], entry)) for entry in data]
    print(f"{name}, answer and its score: {seen}")
    assert seen == [(None, 0.0)] * 3
EOP
