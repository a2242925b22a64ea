#!/bin/sh
# Nenyax, which loads an environment of each format (Gymnasium, OpenEnv, verifiers, Harbor) and trains on its episodes.
# Packages: nenyax 0.1.0a1, gymnasium 1.2.3. Guess: an episode that the environment could not end (`error` set, `ok` False,
# `score` None) is left out of its group, as it has no judgment.
# Seen: 1. Each estimator of advantages takes such an episode with a score of 0. Where answers are paid below 0, as with a cost
# for each step or for a wrong end, the server that went away is the best answer of its group, and what the model said before is
# made more likely. In a group of one right answer it is a wrong one. Its calls of the model are in the episode, so learners have
# tokens to train. 2. `has_signal` says that the group has something to teach if all its episodes were broken but one.
# 3. A call of a tool in the reply is the empty action, without an error.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check nenyax==0.1.0a1 gymnasium==1.2.3
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version

import gymnasium
import nenyax
from nenyax.learners import advantages, base
from nenyax.policy import FunctionModel

assert version("nenyax") == "0.1.0a1"


class Door(gymnasium.Env):
    """Opened by "open"; a wrong end costs 1 and each look 0.25. Behind "wait" the game's server is gone."""

    action_space = observation_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "A door.", {}

    def step(self, action):
        if action == "wait":
            raise ConnectionError("the server is gone")
        if action == "look":
            return "It is shut.", -0.25, False, False, {}
        return "The end.", 1.0 if action == "open" else -1.0, True, False, {}


gymnasium.register("Door-v0", entry_point=Door)
environment = nenyax.load("gymnasium:Door-v0")


def play(*replies):
    left = iter(replies)
    return environment.rollout(FunctionModel(lambda messages: next(left)))


broken, kick, slow, right = play("look", "wait"), play("kick"), play("look", "kick"), play("open")
print(f"broken: score {broken.score}, ok {broken.ok}, calls of the model {len(broken.model_calls)}, {broken.error}")
assert broken.score is None and not broken.ok and len(broken.model_calls) == 2 and "the server is gone" in broken.error
for name in advantages.ESTIMATORS:
    seen = [round(value, 2) for value in advantages.compute(name, [[kick, slow, broken], [right, kick]])[0]]
    print(f"{name}: two wrong answers and the broken episode have the advantages {seen}")
    assert seen[2] == max(seen) > 0
seen = base.group_advantages([[right, broken]])[0]
print(f"a right answer and the broken one: {seen}, signal {base.has_signal([[right, broken]])}")
assert seen == [1.0, -1.0] and base.has_signal([[right, broken]]) == 1.0

call = {"id": "a", "type": "function", "function": {"name": "open", "arguments": "{}"}}
reply = nenyax.types.Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
episode = play(reply)
print(f"a call as the reply: action {episode.steps[0].action!r}, score {episode.score}, error {episode.error}")
assert episode.steps[0].action == "" and episode.score == -1.0 and episode.error is None
EOP
