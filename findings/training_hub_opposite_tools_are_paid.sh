#!/bin/sh
# training-hub's reward for calls of tools (`tool_call_reward`, the default of its GRPO with LoRA).
# Package: training-hub 0.11.2; only the file of its rewards is needed. Guess: "wrong tool name" earns 0.0, as its docstring
# says; the "common variations" of names are case, "-" for "_", and a namespace in front.
# Seen: two names are one if either ends with the other. So "unsubscribe" earns 1.0 where "subscribe" is right, and "unlock" for
# "lock", "unfollow_user" for "follow_user", "deactivate" for "activate", and the other way round. A tool that does the opposite
# is paid like the right one, and nothing can teach the model the difference. "search_files" for "search" earns 0.0.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps training-hub==0.11.2
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import importlib.util
import json
from importlib.metadata import distribution, version

assert version("training-hub") == "0.11.2"
path = distribution("training-hub").locate_file("training_hub/algorithms/rewards.py")
spec = importlib.util.spec_from_file_location("rewards", path)  # the package imports its trainers
rewards = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rewards)

arguments = {"user": "ann"}
for called, right, pay in (
    ("subscribe", "subscribe", 1.0),
    ("unsubscribe", "subscribe", 1.0),
    ("subscribe", "unsubscribe", 1.0),
    ("unlock", "lock", 1.0),
    ("unfollow_user", "follow_user", 1.0),
    ("deactivate", "activate", 1.0),
    ("mail.subscribe", "subscribe", 1.0),
    ("get_user", "delete_user", 0.0),
    ("search_files", "search", 0.0),
):
    call = {"id": "1", "type": "function", "function": {"name": called, "arguments": json.dumps(arguments)}}
    seen = rewards.tool_call_reward({"role": "assistant", "content": "", "tool_calls": [call]}, right, arguments)
    print(f"{called} for {right}: {seen}")
    assert seen == pay
EOP
