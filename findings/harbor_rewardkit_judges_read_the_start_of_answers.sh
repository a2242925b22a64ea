#!/bin/sh
# What a judge of Harbor's rewardkit reads of an ATIF trajectory (`format_trajectory`, 5000 tokens by default).
# Packages: harbor-rewardkit 0.2.3 (made for Python 3.12; its formatter runs on 3.11 too), litellm 1.110.2.
# Guess: a trajectory that fits into the budget is shown whole; one that does not is cut, with a warning ("When the
# trajectory exceeds max_tokens ...").
# Seen: each block is cut to the budget divided by the number of blocks, whether all of it fits or not. A trajectory of
# 100 short calls and one final answer has 0.6 of the budget, and the answer is cut to 24 tokens: the judge grades an
# answer without its result, and there is no warning, since what was cut is not too long. The more steps an agent
# takes, the less is read of what it says at the end, down to 10 tokens.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check litellm==1.110.2
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --ignore-requires-python \
        harbor-rewardkit==0.2.3
    PYTHON="$folder/venv/bin/python"
fi
LITELLM_LOCAL_MODEL_COST_MAP=True \
    "$PYTHON" -W ignore - "$folder" 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import json
import sys
import typing
from importlib.metadata import version
from pathlib import Path

import litellm
import typing_extensions

assert version("harbor-rewardkit") == "0.2.3"
typing.override = typing_extensions.override  # Python 3.12 has it

from rewardkit.trajectory import format_trajectory

MODEL = "anthropic/claude-opus-5-5"
path = Path(sys.argv[1], "trajectory.json")
answer = "I looked at each part of the parser in turn, and then ran its tests, the old ones and the new ones. "
answer += "Line 42 is wrong. I changed < to <= there, and all 31 tests pass."


def show(calls):
    """The text for the judge, its warnings, and the tokens of the whole trajectory."""
    steps = [{"step_id": 1, "source": "user", "message": "Find the wrong line and mend it."}]
    for number in range(calls):
        arguments = {"command": f"sed -n {number}p a.py"}
        call = {"tool_call_id": f"c{number}", "function_name": "bash", "arguments": arguments}
        results = {"results": [{"source_call_id": f"c{number}", "content": "ok"}]}
        step = {"step_id": number + 2, "source": "agent", "message": ""}
        steps.append({**step, "tool_calls": [call], "observation": results})
    steps.append({"step_id": calls + 2, "source": "agent", "message": answer})
    agent = {"name": "coder", "version": "1"}
    path.write_text(json.dumps({"schema_version": "ATIF-v1.7", "session_id": "s", "agent": agent, "steps": steps}))
    warnings = []
    text = format_trajectory(path, model=MODEL, warnings_out=warnings)
    whole = format_trajectory(path, model=MODEL, max_tokens=10**6)
    return text, warnings, len(litellm.encode(model=MODEL, text=whole))


for calls, complete in ((10, True), (30, True), (100, False)):
    text, warnings, tokens = show(calls)
    shown = text.splitlines()[-1]
    print(f"{calls} calls, {tokens} of 5000 tokens: the answer is shown as {shown!r}, warnings {warnings}")
    assert (answer in text) is complete and tokens < 5000 and not warnings
    assert complete or "Line 42" not in text
EOP
