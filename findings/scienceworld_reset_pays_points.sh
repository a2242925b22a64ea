#!/bin/sh
# ScienceWorld's points at the start of an episode, and the sum of an episode's rewards.
# Packages: scienceworld 1.2.3, py4j 0.10.9.9; a Java runtime. Guess: an episode begins with a score of 0, so the rewards of its
# steps add up to its score: 100 if the task is solved, and an agent that does nothing has 0.
# Seen: `reset` plays "look around" itself, which can reach sub-goals where the agent is put down in the right place. That score
# is in the info of `reset` alone; no step pays it. 5 of the first 30 variations of lifespan-longest-lived begin with 50 of 100.
# There an agent that only waits ends with a score of 50, the task's own solution is paid 50 for its score of 100, and a wrong
# answer, whose score is -100, costs -150.
# Needs java. PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check scienceworld==1.2.3 py4j==0.10.9.9
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from scienceworld import ScienceWorldEnv

assert version("scienceworld") == "1.2.3"
environment = ScienceWorldEnv("", envStepLimit=100)


def play(variation, actions):
    """The score at the start and at the end, and the sum of the rewards between."""
    environment.load("lifespan-longest-lived", variation, "", generateGoldPath=True)
    _, info = environment.reset()
    start, paid = info["score"], 0
    for action in actions(environment):
        _, reward, done, info = environment.step(action)
        paid += reward
        if done:
            break
    return start, info["score"], paid


def solve(environment):
    return environment.get_gold_action_sequence()


def wait(environment):
    return ["wait1"] * 3


def fail(environment):
    return ["focus on agent"]


starts = [play(variation, lambda _: [])[0] for variation in range(30)]
print(f"scores at the start: {starts}")
assert sorted(starts) == [0] * 25 + [50] * 5 and starts[3] == 50
for variation, actions, expected in (
    (0, solve, (0, 100, 100)),
    (0, fail, (0, -100, -100)),
    (3, solve, (50, 100, 50)),
    (3, wait, (50, 50, 0)),
    (3, fail, (50, -100, -150)),
):
    start, end, paid = play(variation, actions)
    print(f"variation {variation}, {actions.__name__}: starts with {start}, ends with {end}, its steps are paid {paid}")
    assert (start, end, paid) == expected
environment.close()
EOP
