#!/bin/sh
# Two graders of inspect_evals that users train and report with: tau2 (airline) and BFCL.
# Packages: inspect-evals 0.26.0, inspect-ai 0.3.285. Guess: the number that an agent must tell its user is told, not merely there;
# and two texts of an argument that mean different things are different.
# Seen: 1. tau2 looks for the text anywhere in all that the agent said. Task 3 of the airline asks how many suitcases may
# come, which is 4: an agent that says 3 is right if it names the year of the flight, 2024, and "four" is wrong.
# 2. BFCL drops . , - / _ * ^ before it compares. Expected "x**2", "x*2" is right; for the date "2024-1-12" so is "2024-11-2"; and
# "3.5" or "-35" answers a question whose answer is 35, as does "I read 35 pages and found nothing."
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check inspect-evals==0.26.0 inspect-ai==0.3.285
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - <<'EOP'
import asyncio
import json
from importlib.metadata import version

from inspect_ai.model import ChatMessageUser, ModelName, ModelOutput
from inspect_ai.scorer import Target
from inspect_ai.solver import TaskState
from inspect_ai.tool import ToolCall
from inspect_evals.bfcl.score import agentic_match, tool_call_matches_possible_answers
from inspect_evals.tau2.common.scorer import score_communicated_info
from inspect_evals.tau2.utils import TAU2_DATA_DIR

assert version("inspect-evals") == "0.26.0" and version("inspect-ai") == "0.3.285"


def state(text, **metadata):
    """The state after an episode in which the agent said one thing (to tau2's user, the agent is the other side)."""
    output = ModelOutput.from_content("mockllm/model", text)
    messages = [ChatMessageUser(content=text)]
    return TaskState(
        model=ModelName("mockllm/model"), sample_id=1, epoch=1, input="", messages=messages, output=output, metadata=metadata
    )


(task,) = (task for task in json.loads((TAU2_DATA_DIR / "domains/airline/tasks.json").read_text()) if task["id"] == "3")
assert task["evaluation_criteria"]["communicate_info"] == ["4"]
for said, right in (
    ("You can bring 4 suitcases on your flight.", "C"),
    ("You can bring 3 suitcases on your flight.", "I"),
    ("You can bring 3 suitcases on your flight of May 22, 2024.", "C"),
    ("You can bring four suitcases on your flight.", "I"),
):
    seen = asyncio.run(score_communicated_info()(state(said, instance="1", task=task), Target([]))).value
    print(f"tau2: {said} {seen}")
    assert seen == right
for said, right in (("35", 1), ("36", 0), ("3.5", 1), ("-35", 1), ("I read 35 pages and found nothing.", 1), ("35th", 0)):
    seen = agentic_match(state(said, raw_ground_truth=["35", "thirty five"]), Target([])).value
    print(f"BFCL, memory and search, for 35: {said} {seen}")
    assert seen == right
parameters = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}
for value, expected, right in (
    *(("x**2", "x**2", True), ("x*2", "x**2", True), ("x+2", "x**2", False)),
    *(("2024-11-2", "2024-1-12", True), ("a_b/c", "abc", True), ("1.5", "15", True)),
):
    call = ToolCall(id="1", function="f", arguments={"value": value})
    seen = tool_call_matches_possible_answers(call, {"f": {"value": [expected]}}, {"name": "f", "parameters": parameters})["valid"]
    print(f"BFCL, calls, for {expected}: {value} {seen}")
    assert seen is right
EOP
