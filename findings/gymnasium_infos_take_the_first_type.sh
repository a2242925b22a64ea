#!/bin/sh
# The infos of Gymnasium's vector environments, where the parts of a reward and the texts of an episode travel.
# Packages: gymnasium 1.4.0, numpy 2.3.5. Guess: each environment's value is there as it was given, or values that do not fit
# together raise.
# Seen: the array has the type and the shape of the first value of a step, and the others are cast. With scores 0 and 0.5 the
# second is 0; with False and 0.5 it is True; [1, 2] and [0.5, 0.5] become [0, 0]. A list of one token beside a list of three is
# repeated: [7] reads [7, 7, 7]. In the other order 0.5 and 0 are kept, and the lists raise. So a score is right or cut by the
# order of the environments, and as infos of a step hold only what its environments gave, by who ends an episode when.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check gymnasium==1.4.0 numpy==2.3.5
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
from importlib.metadata import version

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

assert version("gymnasium") == "1.4.0", version("gymnasium")


class Scored(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, score):
        self.score = score

    def reset(self, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, True, False, {"score": self.score}


def scores(*given):
    environments = SyncVectorEnv([lambda each=each: Scored(each) for each in given])
    environments.reset(seed=0)
    try:
        return environments.step(np.zeros(len(given), dtype=int))[4]["score"].tolist()
    except ValueError as error:
        return type(error)


array = np.array
for given, seen in (
    ((0.5, 0), [0.5, 0.0]),
    ((0, 0.5), [0, 0]),
    ((False, 0.5), [False, True]),
    ((array([1, 2]), array([0.5, 0.5])), [[1, 2], [0, 0]]),
    ((array([7, 8, 9]), array([7])), [[7, 8, 9], [7, 7, 7]]),
    ((array([7]), array([7, 8, 9])), ValueError),
):
    got = scores(*given)
    print(f"{given}: {got}")
    assert got == seen
EOP
