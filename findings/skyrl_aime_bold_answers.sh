#!/bin/sh
# AIME answers in common forms, graded by skyrl-gym's AIMEEnv.
# Package: skyrl-gym 0.4.0. Guess: "Answer: 42" is right in bold, with a full stop and as 042, as AIME writes its answers.
# Seen: each of these gets -1. "**Answer:** 42" is read as "**42", "Answer: 42." as "42.", and 042 differs from 42. Only in
# dollars or a box does a full stop do no harm. A later line with the word "answer:" replaces the answer.
# PYTHON may name an interpreter that has this package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check skyrl-gym==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
from importlib.metadata import version

from skyrl_gym.envs.aime.env import AIMEEnv

assert version("skyrl-gym") == "0.4.0"
for reply, reward in (
    ("Answer: 42", 1.0),
    ("Answer: $42$", 1.0),
    ("Answer: $\\boxed{42}$.", 1.0),
    ("**Answer:** 42", -1.0),
    ("**Answer: 42**", -1.0),
    ("Answer: 42.", -1.0),
    ("Answer: 042", -1.0),
    ("Answer: 42\nCheck of the answer: it fits.", -1.0),
):
    step = AIMEEnv(None, {"reward_model": {"ground_truth": "42"}}).step(reply)
    print(f"{reply!r}: reward {step['reward']}, read as {step['metadata']['pred']!r}")
    assert step["reward"] == reward
EOP
