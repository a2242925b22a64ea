#!/bin/sh
# The Python tool of skyrl-gym 0.4, alone and in its SearchCodeEnv.
# Package: skyrl-gym 0.4.0. Guess: the model reads what its program printed, and an error when the program fails.
# Seen: 1. One line on stderr, such as a warning of a library, replaces the whole output: a program that prints 42 and succeeds
# gives "Error executing Python code:" and the warning. 2. The exit status is not looked at: a program that ends with status 1
# or 3 and writes nothing on stderr gives the same text as one that succeeds. 3. In the environment an empty result is no
# message at all: a program that prints nothing gives no observations, and the model is not told that it ran.
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
from skyrl_gym.tools import PythonCodeExecutorToolGroup

assert version("skyrl-gym") == "0.4.0"
tools = PythonCodeExecutorToolGroup()
for program, seen in (
    ("print(42)", "42"),
    ("import sys\nprint(42)\nprint('note', file=sys.stderr)", "Error executing Python code: note"),
    ("import warnings\nwarnings.warn('old')\nprint(42)", "Error executing Python code: <string>:2: UserWarning: old"),
    ("import sys\nprint(42)\nsys.exit(3)", "42"),
    ("raise SystemExit(1)", ""),
    ("pass", ""),
):
    result = tools.execute_tool("python", program)
    print(f"{program!r} gives {result!r}")
    assert result == seen

env = SearchCodeEnv(None, {"reward_spec": {"ground_truth": "42"}, "max_turns": 3})
step = env.step("<tool><python>answer = 6 * 7</python></tool>")
print(f"a program that prints nothing: observations {step['observations']}, done {step['done']}")
assert step["observations"] == [] and not step["done"]
EOP
