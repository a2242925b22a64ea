#!/bin/sh
# agentpile's rows of chat for training (`to_chat`), from an episode as OpenAI messages and from one in ATIF v1.7.
# Packages: agentpile 0.3.1, atif 1.8.0. Guess: a row has what the record has, and `report` counts each change, as it says.
# Seen: each of these is lost while all counts stay 0. 1. `reasoning_content` of every answer: the record has it, the row does
# not, so a template of a thinking model trains empty thoughts. 2. The name of a tool on its result, which Gemma's template
# writes. 3. `weight: 0` of an answer that is not to be trained. 4. A step of the agent that no model wrote
# (`llm_call_count: 0` of ATIF) and a copied one (`is_copied_context`) are answers like all others. 5. Results of tools without
# the id of a call become messages of the user (this is counted).
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check agentpile==0.3.1 atif==1.8.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - "$folder/episode.json" <<'EOP'
import json
import sys
from importlib.metadata import version
from pathlib import Path

import agentpile
from atif import Trajectory

assert version("agentpile") == "0.3.1"
path = Path(sys.argv[1])


def rows(episode):
    """The messages of the row, the counts of changes above 0, and the record."""
    path.write_text(json.dumps(episode))
    report = {}
    run = next(iter(agentpile.load(str(path))))
    messages = agentpile.to_chat(run, report=report)[0]["messages"]
    return messages, {name: count for name, count in report["runs"][0]["counts"].items() if count}, run.record


def call(name, **more):
    return {"type": "function", "function": {"name": name, "arguments": '{"city": "Rome"}'}, **more}


thought = {"role": "assistant", "content": "I look.", "reasoning_content": "A tool is needed."}
sent = [
    {"role": "user", "content": "Weather?"},
    {**thought, "tool_calls": [call("weather", id="a")]},
    {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "20"},
    {"role": "assistant", "content": "20 degrees.", "weight": 0},
]
messages, counts, record = rows({"messages": sent})
print(f"messages: {messages}, changes {counts}")
assert [(each["role"], each["content"]) for each in messages] == [(each["role"], each["content"]) for each in sent]
assert "A tool is needed." in json.dumps(record) and "A tool is needed." not in json.dumps(messages)
assert "name" not in messages[2] and "weight" not in messages[3] and counts == {}

sent[1]["tool_calls"] = [call("weather")]
del sent[2]["tool_call_id"]
messages, counts, _ = rows({"messages": sent})
print(f"without the id of a call: {messages[2]}, changes {counts}")
assert messages[2] == {"role": "user", "content": "20"} and counts == {"results_without_call": 1, "unanswered_calls": 1}

steps = [
    {"source": "user", "message": "Do it."},
    {"source": "agent", "message": "An old answer.", "is_copied_context": True},
    {"source": "agent", "message": "A line of the program.", "llm_call_count": 0},
    {"source": "agent", "message": "An answer.", "reasoning_content": "A thought."},
]
steps = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
agent = {"name": "coder", "version": "1"}
trajectory = {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": agent, "steps": steps}
Trajectory.model_validate(trajectory)
messages, counts, _ = rows(trajectory)
print(f"from ATIF: {messages}, changes {counts}")
assert messages[1:] == [{"role": "assistant", "content": step["message"]} for step in steps[1:]] and counts == {}
EOP
