#!/bin/sh
# TRL's own rewards on the completions of a run with tools.
# Packages: trl 1.16.0, math-verify 0.9.0. Guess: accuracy_reward grades the last message, since GRPOTrainer(tools=...) hands
# rewards a completion of several messages: the call, the tool's result, the answer.
# Seen: accuracy_reward and think_format_reward read completion[0]. A right final answer after a call is paid 0.0, and a guess
# beside the call is paid 1.0 whatever the final answer is.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 trl==1.16.0 math-verify==0.9.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
from importlib.metadata import version

from trl.rewards import accuracy_reward, think_format_reward

assert version("trl") == "1.16.0", version("trl")
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 3, "b": 4}}}


def episode(beside_the_call, answer):
    return [
        {"role": "assistant", "content": beside_the_call, "tool_calls": [CALL]},
        {"role": "tool", "name": "add", "content": "7"},
        {"role": "assistant", "content": rf"The answer is \boxed{{{answer}}}."},
    ]


right = episode("I add them.", 7)
wrong = episode(r"It may be \boxed{7}; I check it.", 8)
seen = accuracy_reward([right, wrong], ["$7$", "$7$"])
print("right final answer, wrong final answer after a right guess:", seen)
assert seen == [0.0, 1.0]
thinks = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "assistant", "content": "<think>a</think>b"}]
print("thoughts in the last message:", think_format_reward([thinks]))
assert think_format_reward([thinks]) == [0.0]
EOP
