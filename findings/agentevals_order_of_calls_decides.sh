#!/bin/sh
# agentevals' match of trajectories in the modes that let calls come in any order, with partial arguments.
# Packages: agentevals 0.0.9, openevals 0.2.2, langchain 1.2.9. Guess: "unordered" is the same for every order of the calls, and
# keys that are to be compared (tool_args_match_overrides) make calls with different values differ.
# Seen: 1. Each call takes the first partner that fits, and no call is ever moved. search(q) fits search(q, page=2) under
# "superset", so a trajectory with both calls matches in the order of the reference and fails in the other one; so with
# "subset", and inside one turn of a "strict" trajectory. 2. A key that neither call has is equal in both: after a tool's
# parameter was renamed, or for a path through a list ("filters.0.name"), calls with any values match, without a word.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check agentevals==0.0.9 openevals==0.2.2 langchain==1.2.9
    PYTHON="$folder/venv/bin/python"
fi
LANGSMITH_TRACING=false "$PYTHON" -W ignore - <<'EOP'
import json
from importlib.metadata import version

from agentevals.trajectory.match import create_trajectory_match_evaluator

assert version("agentevals") == "0.0.9"


def trajectory(*turns):
    messages = [{"role": "user", "content": "Look it up."}]
    for turn in turns:
        made = [{"name": "search", "arguments": json.dumps(arguments)} for arguments in turn]
        calls = [{"id": str(index), "type": "function", "function": each} for index, each in enumerate(made)]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "Nothing."} for call in calls]
    return [*messages, {"role": "assistant", "content": "Done."}]


def score(outputs, reference, **options):
    return create_trajectory_match_evaluator(**options)(outputs=outputs, reference_outputs=reference)["score"]


ONE, TWO = {"q": "a"}, {"q": "a", "page": 2}
for mode, arguments, same, other in (
    ("unordered", "exact", True, True),
    ("unordered", "superset", True, False),
    ("unordered", "subset", True, False),
    ("strict", "superset", True, False),
):
    turns = [[ONE, TWO]] if mode == "strict" else [[ONE], [TWO]]
    turned = [[TWO, ONE]] if mode == "strict" else [[TWO], [ONE]]
    options = {"trajectory_match_mode": mode, "tool_args_match_mode": arguments}
    seen = [score(trajectory(*each), trajectory(*turns), **options) for each in (turns, turned)]
    print(f"{mode}, arguments {arguments}: in the order of the reference {seen[0]}, in the other order {seen[1]}")
    assert seen == [same, other]
for keys, left, right, expected in (
    (["q"], {"q": "a"}, {"q": "b"}, False),
    (["query"], {"q": "a"}, {"q": "b"}, True),
    (["filters.0.name"], {"filters": [{"name": "a"}]}, {"filters": [{"name": "b"}]}, True),
):
    options = {"trajectory_match_mode": "unordered", "tool_args_match_overrides": {"search": keys}}
    seen = score(trajectory([left]), trajectory([right]), **options)
    print(f"keys {keys}: {left} and {right} match: {seen}")
    assert seen is expected
EOP
