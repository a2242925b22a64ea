#!/bin/sh
# GEM's PythonCodeTool with a program that uses a name it has not defined, and with a time limit.
# Packages: gem-llm 0.1.0 with numpy 2.4.0, regex 2026.11.15 and pandas 3.1.1 (it names none of them).
# Guess: a program runs once, its NameError comes back, and `timeout=1` ends a program after one second.
# Seen: after "is not defined" the program runs a second time, with about thirty imports and helpers before it. Numpy
# and pandas are among them: without these the model reads "No module named 'numpy'", which its program never named. With them
# everything before the mistake is done twice, and a misspelt name that the helpers define, such as `deque` or `TreeNode`, is no
# error. The time limit never reaches the run: with `timeout=1` a program of two seconds succeeds, as the default of ten holds.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -qq --disable-pip-version-check gem-llm==0.1.0 numpy==2.4.0 regex==2026.11.15 pandas==3.1.1
    PYTHON="$folder/venv/bin/python"
fi
python3 -m venv --without-pip "$folder/bare" >/dev/null
cd "$folder"
PATH="$(dirname "$PYTHON"):$PATH" "$PYTHON" - "$folder/log" "$folder/bare/bin" <<'EOP'
import os
import sys
from importlib.metadata import version

from gem.tools.python_code_tool import PythonCodeTool

assert version("gem-llm") == "0.1.0"
log = sys.argv[1]
tool = PythonCodeTool(timeout=1)

program = f"with open({log!r}, 'a') as file:\n    file.write('ran\\n')\nprint(totl)"
_, has_error, observation, _ = tool.execute_action(f"<python>{program}</python>")
runs = len(open(log).readlines())
print(f"a program with a mistake: error {has_error}, ran {runs} times, {observation.strip().splitlines()[-1]}")
assert has_error and runs == 2

_, has_error, observation, _ = tool.execute_action("<python>print(deque([1, 2]))</python>")
print(f"a program without its import: error {has_error}, {observation.strip()}")
assert not has_error

_, has_error, observation, _ = tool.execute_action("<python>import time\ntime.sleep(2)\nprint('done')</python>")
print(f"two seconds with timeout=1: error {has_error}, {observation.strip()}")
assert not has_error and "done" in observation

os.environ["PATH"] = f"{sys.argv[2]}:{os.environ['PATH']}"
_, has_error, observation, _ = tool.execute_action("<python>print(totl)</python>")
print(f"without numpy: error {has_error}, {observation.strip().splitlines()[-1]}")
assert has_error and "totl" not in observation and "No module named" in observation
EOP
