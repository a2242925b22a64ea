#!/bin/sh
# `import transformers` in an environment with many other packages.
# Package: transformers 5.17.0, without torch.
# Guess: the import asks for the packages that transformers can use, one by one.
# Seen: `transformers.utils.import_utils` asks Python for the distributions of all packages
# (`importlib.metadata.packages_distributions`). Python opens the METADATA of every distribution that is installed, with
# its whole README, and the RECORD of those without a top_level.txt. So the time of the import grows with packages that
# have nothing to do with it: on a machine with 300 of them this one line took 1.0 to 1.9 s, half of what `import torch`
# takes, in each process of an inference server that imports it.
# PYTHON may name an interpreter that has this package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.17.0
    PYTHON="$folder/venv/bin/python"
fi
PYTHONPATH="$folder/others" "$PYTHON" -W ignore - "$folder/others" <<'EOP'
import sys
import time
from importlib.metadata import version
from pathlib import Path

OTHERS = 300
for number in range(OTHERS):
    information = Path(sys.argv[1], f"other_{number}-1.0.dist-info")
    information.mkdir(parents=True)
    readme = "A package of somebody else.\n" * 500
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: other-{number}\nVersion: 1.0\n\n{readme}")
    (information / "RECORD").write_text("".join(f"other_{number}/part_{part}.py,,\n" for part in range(50)))
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
began = time.perf_counter()
import transformers.utils.import_utils  # noqa: E402

seconds = time.perf_counter() - began
assert version("transformers") == "5.17.0"
metadata = {path for path in opened if "/other_" in path and path.endswith("METADATA")}
records = {path for path in opened if "/other_" in path and path.endswith("RECORD")}
assert len(metadata) == len(records) == OTHERS, (len(metadata), len(records))
print(f"as stated: importing opened {len(metadata)} METADATA and {len(records)} RECORD of others, in {seconds:.1f} s")
EOP
