#!/bin/sh
# The curricula that reasoning-gym has for its data sets, as trainers step through them: all attributes to level 0, 1, 2, ...
# Package: reasoning-gym 0.1.25. Guess: each level of a data set's own curriculum is a valid configuration, and a higher level has
# other entries than the level before.
# Seen: knight_swap's curriculum is valid at no level, the first included: its attribute stays below the minimum of 6 nodes that
# its configuration asks for. modulo_grid raises at level 1, caesar_cipher and survo from level 2 on, rubiks_cube at its last one:
# a run that has climbed so far ends with an AssertionError. Some steps change nothing: all of twelve entries of coin_flip are the
# same at level 5 as at 4, since only the upper end of a range moves and the seed draws the same numbers below it.
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

from reasoning_gym.factory import create_curriculum, create_dataset

assert version("reasoning-gym") == "0.1.25", version("reasoning-gym")


def levels(name):
    """The configuration of each level, with every attribute at it or at its last one; the text of the error if it is invalid."""
    curriculum = create_curriculum(name)
    found = []
    for level in range(max(len(each.levels) for each in curriculum.attributes.values())):
        for attribute, each in curriculum.attributes.items():
            curriculum.set_attr_level(attribute, min(level, len(each.levels) - 1))
        try:
            configuration = curriculum.generate_configuration({"size": 12, "seed": 1})
            configuration.validate()
            found.append(configuration)
        except AssertionError as error:
            found.append(str(error))
    return found


for name, seen in (
    ("knight_swap", [0, 1, 2, 3, 4]),
    ("modulo_grid", [1]),
    ("caesar_cipher", [2, 3]),
    ("survo", [2, 3]),
    ("rubiks_cube", [4]),
    ("chain_sum", []),
):
    found = levels(name)
    invalid = {level: each for level, each in enumerate(found) if isinstance(each, str)}
    print(f"{name}: {len(found)} levels, invalid {invalid}")
    assert list(invalid) == seen
fourth, fifth = (
    [entry["question"] for entry in create_dataset("coin_flip", **vars(each))] for each in levels("coin_flip")[4:6]
)
print(f"coin_flip: {sum(a == b for a, b in zip(fourth, fifth))} of 12 entries of level 5 are those of level 4")
assert fourth == fifth
EOP
