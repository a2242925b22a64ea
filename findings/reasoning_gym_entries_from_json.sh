#!/bin/sh
# The scorers of reasoning-gym on entries that were kept as rows of JSON or of a table, as trainers and services keep their tasks.
# Packages: reasoning-gym 0.1.25, datasets 4.7.0. Guess: an entry is plain data, so it is scored the same after a file.
# Seen: arc_agi and rearc compare a tuple with metadata["output"], which is a list after JSON or Arrow: the right answer earns
# 0.05, as any wrong grid does, and nothing raises: no policy can learn them. All other data sets pay their own answer as before.
# Four of them are no rows of `datasets`: codeio and graph_color have numbers as keys, futoshiki and knights_knaves mix types in
# a list.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check reasoning-gym==0.1.25 datasets==4.7.0
    PYTHON="$folder/venv/bin/python"
fi
HF_HOME="$folder/hf" HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - <<'EOP'
import json
from importlib.metadata import version

import pyarrow
import reasoning_gym
from datasets import Dataset
from reasoning_gym.factory import DATASETS

assert version("reasoning-gym") == "0.1.25" and version("datasets") == "4.7.0"
changed, no_rows = {}, set()
for name in sorted(set(DATASETS) - {"composite"}):  # a mixture of the others
    data = reasoning_gym.create_dataset(name, size=4, seed=11)
    entries = [data[i] for i in range(4)]
    kept = {"JSON": json.loads(json.dumps(entries))}
    try:
        kept["Arrow"] = list(Dataset.from_list(entries))
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        no_rows.add(name)
    for form, rows in kept.items():
        scores = [(data.score_answer(a["answer"], a), data.score_answer(a["answer"], b)) for a, b in zip(entries, rows, strict=True)]
        if any(fresh != kept for fresh, kept in scores):
            changed[name, form] = scores
    if name in ("arc_agi", "rearc"):
        assert data.score_answer("0 0\n0 0", kept["JSON"][0]) == 0.05
print(f"{len(DATASETS) - 1} data sets; their own answers, as (fresh entry, entry that was kept):")
for (name, form), scores in changed.items():
    print(f"  {name} from {form}: {scores}")
    assert set(scores) == {(1.0, 0.05)}
assert set(changed) == {(name, form) for name in ("arc_agi", "rearc") for form in ("JSON", "Arrow")}
print("no rows of datasets:", *sorted(no_rows))
assert no_rows == {"codeio", "futoshiki", "graph_color", "knights_knaves"}
EOP
