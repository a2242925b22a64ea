"""Training runs that are compared: several at once, and what each has measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.learning import measured

NO_SIGNAL = 3
"""The exit code of a run whose episodes held nothing to learn from."""


def play(runs: Mapping[Path, Sequence[str]], *, jobs: int) -> dict[Path, dict[str, Any]]:
    """Run `python -m` with the arguments of each run, at most `jobs` at a time; a finished run is not repeated.

    What a run prints is in FOLDER.log beside its folder.

    Args:
        runs: the arguments by the folder of the run.
        jobs: runs at a time.

    Returns:
        The figures of `measured` by the folder; of its curves that of the held-out tasks.

    Raises:
        subprocess.CalledProcessError: a run failed.
    """

    def one(folder: Path) -> dict[str, Any]:
        if not (folder / "summary.json").is_file():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_suffix(".log").open("w") as log:
                command = [sys.executable, "-m", *runs[folder], "--output", str(folder)]
                done = subprocess.run(command, stdout=log, stderr=log)
            if done.returncode != NO_SIGNAL:
                done.check_returncode()
        figures = measured(folder)
        return figures | {"curve": {"held_out": figures["curve"]["held_out"]}}

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(runs, pool.map(one, runs), strict=True))
