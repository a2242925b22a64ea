#!/bin/sh
# OpenJudge's grader of the calls of an episode (ToolCallStepSequenceMatchGrader) in its strict mode, the default, which compares
# names and arguments; with its default and with `use_jaccard_similarity=False`, which compares step by step.
# Package: py-openjudge 0.2.4. Guess: the reference's own calls are 1.0 in any order of the keys, and other values are less.
# Seen: 1. By default two calls are equal if Python prints their arguments alike, so a right call is 0.0 with its keys in another
# order. Calls are a set: a payment made three times is 1.0. Arguments that are no JSON, as of a call that was cut, are {}, so
# such a call is a right one without arguments. 2. Step by step, keys and values go into one set of texts: with `from` and `to`
# swapped a booking is 1.0, and more calls than wanted are 1.0, in the step or behind it. The wanted calls themselves are 0.75 if
# a step calls one tool twice: each wanted call is compared with the first call of that name alone.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check py-openjudge==0.2.4
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import asyncio
import json
from importlib.metadata import version

from openjudge.graders.agent.tool.tool_call_step_sequence_match import ToolCallStepSequenceMatchGrader

assert version("py-openjudge") == "0.2.4"


def score(steps, wanted, **options):
    messages = [{"role": "user", "content": "Do it."}]
    for step in steps:
        calls = [{"name": name, "arguments": text if isinstance(text, str) else json.dumps(text)} for name, text in step]
        messages.append({"role": "assistant", "tool_calls": [{"function": call} for call in calls]})
    reference = [[{"name": name, "arguments": arguments} for name, arguments in step] for step in wanted]
    grader = ToolCallStepSequenceMatchGrader(**options)
    return asyncio.run(grader.aevaluate(messages=messages, reference_tool_calls=reference)).score


TRIP = {"from": "Rome", "to": "Oslo"}
BACK = {"from": "Oslo", "to": "Rome"}
TWICE = [[("search", {"q": "a"}), ("search", {"q": "b"})]]
DEFAULT, STEPS = {}, {"use_jaccard_similarity": False}
for what, options, steps, wanted, expected in (
    ("the wanted call", DEFAULT, [[("book", TRIP)]], [[("book", TRIP)]], 1),
    ("swapped values", DEFAULT, [[("book", BACK)]], [[("book", TRIP)]], 0),
    ("keys in another order", DEFAULT, [[("book", dict(reversed(TRIP.items())))]], [[("book", TRIP)]], 0),
    ("made three times", DEFAULT, [[("pay", TRIP)]] * 3, [[("pay", TRIP)]], 1),
    ("arguments that were cut", DEFAULT, [[("list", '{"path": "/tm')]], [[("list", {})]], 1),
    ("the wanted call", STEPS, [[("book", TRIP)]], [[("book", TRIP)]], 1),
    ("swapped values", STEPS, [[("book", BACK)]], [[("book", TRIP)]], 1),
    ("a call more in the step", STEPS, [[("book", TRIP), ("cancel", {})]], [[("book", TRIP)]], 1),
    ("a step more", STEPS, [[("book", TRIP)], [("cancel", {})]], [[("book", TRIP)]], 1),
    ("the two wanted calls of one step", STEPS, TWICE, TWICE, 0.75),
):
    seen = score(steps, wanted, **options)
    print(f"{what}, {'step by step' if options else 'by default'}: {seen}")
    assert seen == expected
EOP
