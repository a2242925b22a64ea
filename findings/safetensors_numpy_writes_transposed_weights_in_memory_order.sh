#!/bin/sh
# Transposed weights saved by safetensors.numpy, as conversions between GPT-2's layers, Flax and PyTorch make them.
# Packages: safetensors 0.8.0 and 0.7.0, numpy 2.4.6. Guess: save_file asks for contiguous arrays, so `w.T` is refused, as the
# variant for PyTorch refuses it, or written right, as by 0.7.0.
# Seen: 0.8.0 takes the shape from the array and the values from its memory, without a word. A transposed matrix has its new
# shape and the old order of values, so a square one comes back as if it had never been transposed, and others are mixed. A
# column is a row. 0.7.0 writes all of them right; so does 0.8.0 after np.ascontiguousarray.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" >/dev/null
"$folder/venv/bin/pip" install -q --disable-pip-version-check safetensors==0.8.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --target "$folder/old" safetensors==0.7.0
cat >"$folder/run.py" <<'EOP'
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

version, file = safetensors.__version__, Path(tempfile.mkdtemp(dir=Path(__file__).parent)) / "model.safetensors"
assert version == sys.argv[1]
square, wide = np.arange(4.0).reshape(2, 2), np.arange(6.0).reshape(2, 3)
for name, weight, in_memory in (
    ("a matrix", wide, wide),
    ("a square one, transposed", square.T, square),
    ("a wide one, transposed", wide.T, wide.reshape(3, 2)),
    ("its first column", wide[:, 0], wide[0, :2]),
    ("transposed, then made contiguous", np.ascontiguousarray(wide.T), wide.T),
):
    save_file({"weight": weight}, file)
    read = load_file(file)["weight"]
    print(f"{version}, {name}: saved {weight.tolist()}, read {read.tolist()}")
    assert np.array_equal(read, in_memory if version == "0.8.0" else weight)
EOP
"$folder/venv/bin/python" -W ignore "$folder/run.py" 0.8.0
PYTHONPATH="$folder/old" "$folder/venv/bin/python" -W ignore "$folder/run.py" 0.7.0
