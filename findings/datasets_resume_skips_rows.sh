#!/bin/sh
# A stream of a data set that is stopped and resumed by its state_dict, as trainers do after a checkpoint.
# Packages: datasets 4.7.0 and 5.2.0. Guess: the resumed stream gives the row that comes next, as the documents say of all streams
# but a shuffled one.
# Seen: with 4.7.0 a stream of JSON lines, or of a table, does so by itself. Behind map or filter it goes on at the end of the
# block that was read: after 3 rows of a file of 10 the other 7 never come. Behind batch(4) other rows come in their place. A
# stream of a Python generator is right, and with 5.2.0 all are. Nothing is raised: a run that is resumed often does not see all
# of its tasks, and which ones depends on where it stopped.
# PYTHON and PYTHON5 may name interpreters that have these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
install() {
    python3 -m venv "$folder/$1" >/dev/null
    "$folder/$1/bin/pip" install -q --disable-pip-version-check "datasets==$1"
}
[ -n "${PYTHON:-}" ] || { install 4.7.0 && PYTHON="$folder/4.7.0/bin/python"; }
[ -n "${PYTHON5:-}" ] || { install 5.2.0 && PYTHON5="$folder/5.2.0/bin/python"; }
cat >"$folder/program.py" <<'EOP'
import json
import os
import sys

import datasets

datasets.disable_progress_bars()
folder, right = sys.argv[1], sys.argv[2] == "right"
files = []
for shard in range(4):
    files.append(os.path.join(folder, f"{shard}.jsonl"))
    with open(files[-1], "w") as out:
        out.writelines(json.dumps({"x": 10 * shard + row}) + "\n" for row in range(10))


def rows(shards):
    for shard in shards:
        yield from ({"x": 10 * shard + row} for row in range(10))


SOURCES = {
    "JSON lines": lambda: datasets.load_dataset("json", data_files=files, split="train", streaming=True),
    "table": lambda: datasets.Dataset.from_dict({"x": list(range(40))}).to_iterable_dataset(num_shards=4),
    "generator": lambda: datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2, 3]}),
}
STEPS = {
    "alone": lambda stream: stream,
    "map": lambda stream: stream.map(lambda row: {"y": row["x"]}),
    "filter": lambda stream: stream.filter(lambda row: row["x"] % 2 == 0),
    "batch": lambda stream: stream.batch(4),
}
lost = []
for source, make in SOURCES.items():
    for step, behind in STEPS.items():
        whole = [row["x"] for row in behind(make())]
        stream = behind(make())
        first = [row["x"] for _, row in zip(range(3), stream)]
        resumed = behind(make())
        resumed.load_state_dict(stream.state_dict())
        rest = [row["x"] for row in resumed]
        print(f"datasets {datasets.__version__}, {source}, {step}: {len(rest)} of {len(whole) - 3} rows, next {rest[0]}")
        assert first == whole[:3]
        lost += [(source, step)] if rest != whole[3:] else []
assert lost == ([] if right else [(source, step) for source in list(SOURCES)[:2] for step in list(STEPS)[1:]]), lost
EOP
export HF_HOME="$folder/home"
"$PYTHON" -W ignore "$folder/program.py" "$folder" wrong
"$PYTHON5" -W ignore "$folder/program.py" "$folder" right
