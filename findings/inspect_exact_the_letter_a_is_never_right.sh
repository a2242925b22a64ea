#!/bin/sh
# inspect_ai's exact() and f1() scorers on tasks whose targets are letters, as of multiple choice.
# Package: inspect-ai 0.3.285. Guess: the answer "A" is right for the target "A", as "B" is for "B".
# Seen: articles are taken out of both sides before they are compared, and the letter a is one. What is left of "A" is nothing,
# and nothing is never right: the right answer A is INCORRECT for exact() and 0.0 for f1(). B, C and D are scored right. So a
# quarter of the rows of a balanced set counts as wrong for each model. "An" and "The" as words to be named are lost too, and
# "vitamin A" is right for "vitamin".
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check inspect-ai==0.3.285
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import asyncio
from importlib.metadata import version

from inspect_ai.model import ChatMessageUser, ModelOutput
from inspect_ai.scorer import CORRECT, INCORRECT, Target, exact, f1
from inspect_ai.solver import TaskState

assert version("inspect-ai") == "0.3.285"


def score(scorer, answer, target):
    messages = [ChatMessageUser(content="Which one?")]
    output = ModelOutput.from_content("mock/model", answer)
    state = TaskState(model="mock/model", sample_id=1, epoch=1, input="Which one?", messages=messages, output=output)
    return asyncio.run(scorer(state, Target(target))).value


for answer, target, value, share in (
    ("A", "A", INCORRECT, 0.0),
    ("B", "B", CORRECT, 1.0),
    ("C", "C", CORRECT, 1.0),
    ("D", "D", CORRECT, 1.0),
    ("D", "C", INCORRECT, 0.0),
    ("The", "the", INCORRECT, 0.0),
    ("vitamin A", "vitamin", CORRECT, 1.0),
):
    seen = score(exact(), answer, target), score(f1(), answer, target)
    print(f"answer {answer!r}, target {target!r}: exact {seen[0]}, f1 {seen[1]}")
    assert seen == (value, share)
EOP
