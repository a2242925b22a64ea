#!/bin/sh
# Right programs of common forms, graded by skyrl-gym's LCBEnv (LiveCodeBench's grader) on standard input.
# Package: skyrl-gym 0.4.0. Guess: a program that prints the right output for every input earns 1.
# Seen: programs are wrapped in a function, and standard input is replaced by a text. A module variable that a function changes
# by `global`, `sys.stdin.buffer` and `from __future__ import annotations` earn 0. sys.stdin.read, open(0) and exit() earn 1.
# PYTHON may name an interpreter that has this package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check skyrl-gym==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
cat >"$folder/grade.py" <<'EOP'
import json
from importlib.metadata import version

from skyrl_gym.envs.lcb.env import LCBEnv

TESTS = [{"input": "3\n1 2 3\n", "output": "6\n", "testtype": "stdin"}]
GLOBAL = """total = 0
def add(x):
    global total
    total += x
input()
for word in input().split():
    add(int(word))
print(total)"""
if __name__ == "__main__":
    assert version("skyrl-gym") == "0.4.0"
    for title, program, reward in (
        ("input", "input()\nprint(sum(map(int, input().split())))", 1.0),
        ("wrong", "print(1)", 0.0),
        ("open(0)", "print(sum(map(int, open(0).read().split()[1:])))", 1.0),
        ("exit()", "input()\nprint(sum(map(int, input().split())))\nexit()", 1.0),
        ("sys.stdin.buffer", "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split()[1:])))", 0.0),
        ("global", GLOBAL, 0.0),
        ("__future__", "from __future__ import annotations\ninput()\nprint(sum(map(int, input().split())))", 0.0),
    ):
        env = LCBEnv(None, {"reward_spec": {"ground_truth": json.dumps(TESTS)}})
        step = env.step(f"```python\n{program}\n```")
        print(f"{title}: reward {step['reward']}")
        assert step["reward"] == reward
EOP
"$PYTHON" "$folder/grade.py"
