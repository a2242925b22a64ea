#!/bin/sh
# ATIF trajectories with steps that were copied from an earlier one (as after a summary), made into training records by
# agent-trajectory ("structured records for training").
# Packages: agent-trajectory 0.4.3 (needs node 20 or later), atif 1.8.0, pydantic 2.14.4. Guess: ATIF says of `is_copied_context`
# that consumers MUST filter such steps out of training data, so they are left out, or marked.
# Seen: they become records like all others. The flag is in none of them and no diagnostic speaks of it, so a reply that was copied
# into a second trajectory is trained twice, and as often as it was copied, and the reader of the records cannot tell.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check agent-trajectory==0.4.3 atif==1.8.0 pydantic==2.14.4
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import json
from importlib.metadata import version

from atif import Agent, Step, Trajectory
from trajectory import normalize_transcript

assert version("agent-trajectory") == "0.4.3"
assert "Consumers MUST filter such steps out of SFT training data" in Step.model_fields["is_copied_context"].description


def write(*steps):
    made = [Step(step_id=number, source=source, message=text, is_copied_context=copied)
            for number, (source, text, copied) in enumerate(steps, start=1)]  # fmt: skip
    agent = Agent(name="coder", version="1", model_name="m")
    return Trajectory(schema_version="ATIF-v1.7", session_id="s", agent=agent, steps=made).to_json_dict()


first = write(("user", "Fix it.", None), ("agent", "I read the file.", None))
second = write(("user", "Fix it.", True), ("agent", "I read the file.", True), ("user", "Go on.", None), ("agent", "Fixed.", None))
assert [step.get("is_copied_context") for step in second["steps"]] == [True, True, None, None]
trained = []
for document in (first, second):
    result = normalize_transcript(source="atif", transcript=json.dumps(document))
    for record in result["records"]:
        print(record)
    print(result["diagnostics"])
    trained += [record["content"] for record in result["records"] if record["role"] == "assistant"]
    assert "copied" not in json.dumps([result["records"], result["diagnostics"]])
assert trained == ["I read the file.", "I read the file.", "Fixed."]
EOP
