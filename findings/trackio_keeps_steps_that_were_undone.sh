#!/bin/sh
# Trackio's record of a run of training that is resumed from a checkpoint, and of values that are no numbers.
# Package: trackio 0.43.0. Guess: after `resume` at step 2 the record has one value a step, the new one, as the trainer has, and a
# text stays a text.
# Seen: 1. A run of steps 0 to 3, resumed at step 2, has two values for step 2 and the undone one for step 3, in the order of
# writing, and no warning says so. A log without a step is step 4 then, one more than the highest step ever written, and not 3.
# 2. The answers "NaN" and "Infinity" of a model, logged as texts, are read back as numbers. 3. In an object or a list it is the
# other way round: a NaN that was logged is the text "NaN", and infinity is "Infinity".
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check trackio==0.43.0
    PYTHON="$folder/venv/bin/python"
fi
TRACKIO_DIR="$folder/data" HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - >"$folder/log" 2>&1 <<'EOP' || { cat "$folder/log"; exit 1; }
import json
import math
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import trackio

assert version("trackio") == "0.43.0"
trackio.init(project="p", name="run", auto_log_gpu=False)
for step in range(4):
    trackio.log({"reward": step}, step=step)
trackio.finish()
trackio.init(project="p", name="run", resume="must", auto_log_gpu=False)
trackio.log({"reward": 20}, step=2)
trackio.log({"reward": 30})
objects = {"inside": {"loss": math.nan, "last": [math.inf]}}
trackio.log({"answer": "NaN", "other": "Infinity", "word": "none", "loss": math.nan, **objects})
trackio.finish()


def values(metric):
    """Steps and values as `trackio get metric` prints them (with NaN, which Python's json reads)."""
    command = [str(Path(sys.executable).parent / "trackio"), "get", "metric", "--project", "p", "--run", "run", "--json"]
    text = subprocess.run([*command, "--metric", metric], capture_output=True, text=True, check=True).stdout
    return [(row["step"], row["value"]) for row in json.loads(text)["values"]]


seen = values("reward")
print(f"seen: reward {seen}")
assert seen == [(0, 0), (1, 1), (2, 2), (3, 3), (2, 20), (4, 30)]
for metric in ("answer", "other", "word", "loss", "inside"):
    print(f"seen: {metric} {values(metric)}")
answer, other, word = (values(metric)[0][1] for metric in ("answer", "other", "word"))
assert isinstance(answer, float) and math.isnan(answer) and other == math.inf and word == "none"
assert math.isnan(values("loss")[0][1])
assert values("inside")[0][1] == {"loss": "NaN", "last": ["Infinity"]}
EOP
grep seen: "$folder/log"
