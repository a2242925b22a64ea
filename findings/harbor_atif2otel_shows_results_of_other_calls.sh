#!/bin/sh
# Harbor's export of ATIF trajectories to OpenTelemetry spans (harbor-atif2otel), on trajectories that the models of
# atif accept.
# Packages: harbor-atif2otel 0.1.1 (made for Python 3.12; its converter runs on 3.11 too), atif 1.8.0,
# opentelemetry-proto 1.45.2.
# Guess: a tool's span has the result of its call, each result is in some span, and a span of the model has the
# messages that it was called with.
# Seen: 1. Results are looked up by the id of the call in the whole trajectory, though ATIF asks for ids that are
# unique in a step alone. With the ids call_0, call_1 anew in each turn, as many engines give them, each tool span
# shows the last result of its id: a test run that failed is shown as passed. 2. A result without the id of a call
# (ATIF: of an action that is no tool's call, as Terminus 2 of Harbor writes them) is in no span. 3. The input of a
# model's span has the user's texts of the turn alone: no answer, no call and no result, and nothing of earlier turns.
# 4. Its output has no calls: a turn with a call is an empty text. 5. Null for an absent field, as pydantic writes it
# by default, raises.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check atif==1.8.0 opentelemetry-proto==1.45.2
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --ignore-requires-python \
        harbor-atif2otel==0.1.1
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import json
from importlib.metadata import version

from atif import Trajectory
from harbor_atif2otel.convert import convert_trajectory
from harbor_atif2otel.validate import validate_trajectory

assert version("harbor-atif2otel") == "0.1.1" and version("atif") == "1.8.0"


def call_step(number, second, command, result, call_id):
    call = {"tool_call_id": call_id, "function_name": "bash", "arguments": {"command": command}}
    step = {"step_id": number, "timestamp": f"2026-10-01T10:00:{second:02}Z", "source": "agent", "message": ""}
    return {**step, "tool_calls": [call], "observation": {"results": [{"source_call_id": call_id, "content": result}]}}


def say(number, second, source, message, **more):
    timestamp = f"2026-10-01T10:00:{second:02}Z"
    return {"step_id": number, "timestamp": timestamp, "source": source, "message": message, **more}


def checked(steps):
    agent = {"name": "coder", "version": "1", "model_name": "m"}
    return Trajectory.model_validate({"schema_version": "ATIF-v1.7", "session_id": "s", "agent": agent, "steps": steps})


def spans(steps):
    trajectory = checked(steps).to_json_dict()
    assert not validate_trajectory(trajectory)
    found = []
    for span in convert_trajectory(trajectory).scope_spans[0].spans:
        found.append({pair.key: pair.value.string_value for pair in span.attributes})
    return found


def results(steps):
    return [span["output.value"] for span in spans(steps) if span["openinference.span.kind"] == "TOOL"]


for ids, shown in ((("a", "b"), ["1 failed", "5 passed"]), (("call_0", "call_0"), ["5 passed", "5 passed"])):
    steps = [
        say(1, 0, "user", "Mend it."),
        call_step(2, 1, "pytest", "1 failed", ids[0]),
        call_step(3, 2, "mend; pytest", "5 passed", ids[1]),
        say(4, 3, "agent", "Done."),
        say(5, 4, "user", "Thanks. Which file?"),
        say(6, 5, "agent", "parser.py"),
    ]
    seen = results(steps)
    print(f"ids {ids}: results {seen}")
    assert seen == shown
    models = [span for span in spans(steps) if span["openinference.span.kind"] == "LLM"]
    inputs = [[message["content"] for message in json.loads(span["input.value"])] for span in models]
    outputs = [span["output.value"] for span in models]
    print(f"inputs of the model: {inputs}; outputs: {outputs}")
    assert inputs == [["Mend it."]] * 3 + [["Thanks. Which file?"]]
    assert outputs == ["", "", "Done.", "parser.py"]

terminal = say(2, 1, "agent", '{"keystrokes": "ls"}', observation={"results": [{"content": "parser.py  tests"}]})
text = json.dumps(spans([say(1, 0, "user", "Look."), terminal]))
print("the terminal's text is in a span:", "parser.py" in text)
assert "keystrokes" in text and "parser.py" not in text

try:
    convert_trajectory(checked(steps).to_json_dict(exclude_none=False))
except (AttributeError, TypeError) as error:
    print(f"with null for absent fields: {error}")
else:
    raise AssertionError("null was read")
EOP
