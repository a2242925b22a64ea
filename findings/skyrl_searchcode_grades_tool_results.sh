#!/bin/sh
# The reward of skyrl-gym's SearchCodeEnv, whose model answers "#### N" after programs of its own.
# Package: skyrl-gym 0.4.0. Guess: the model's last answer is graded.
# Seen: all messages of the episode are joined, the tool's results among them, and the first "#### N" decides. A program that prints
# a table with marks of this form spoils the right answer after it; a wrong answer is paid in full when the program printed
# the right one; and without any answer the printed number is paid when the turns are used up.
# PYTHON may name an interpreter that has this package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check skyrl-gym==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
cd "$folder"
PATH="$(dirname "$PYTHON"):$PATH" "$PYTHON" - <<'EOP'
from importlib.metadata import version

from skyrl_gym.envs.searchcode.env import SearchCodeEnv

assert version("skyrl-gym") == "0.4.0"
for title, program, last, reward in (
    ("right answer", "print(8 * 9)", "<solution>#### 72</solution>", 1.0),
    ("right answer after printed marks", "print('#### 1 run, 72')", "<solution>#### 72</solution>", 0.0),
    ("wrong answer after the printed right one", "print('#### 72')", "<solution>#### 5</solution>", 1.0),
    ("no answer", "print('#### 72')", "I do not know.", 1.0),
):
    env = SearchCodeEnv(None, {"reward_spec": {"ground_truth": "72"}, "max_turns": 2})
    env.step(f"<tool><python>{program}</python></tool>")
    step = env.step(last)
    print(f"{title}: reward {step['reward']}")
    assert step["done"] and step["reward"] == reward
EOP
