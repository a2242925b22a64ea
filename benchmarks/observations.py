"""Does it help to learn the environment's tokens as data (--training.observation_coef), where success is rare?

    python -m benchmarks.observations --output outputs/observations --seeds 0 1 2 --jobs 2

code_exec at a level at which a short warm-up leaves success below 0.05. For every seed one run for each coefficient,
which differ in nothing else. The same command goes on with the runs that are missing. Prints a table, and writes
RESULTS. Options that it does not know are those of the runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.arms import play
from benchmarks.machine import describe

RESULTS = Path(__file__).parent / "results" / "observations.json"
RARE = 0.05
"""Success before training at most, for a run to count."""


def arguments(seed: int, coef: float, level: int, options: Sequence[str]) -> list[str]:
    """The arguments of one run. The warm-up ends at the first probe with two solved tasks of 96."""
    return [
        "trainers.grpo", "--env", "code_exec", "--env.options.level", str(level), "--seed", str(seed),
        "--training.observation_coef", str(coef), "--warmup.until_success", "0.02", "--warmup.probe_every", "1",
        "--training.signal_error", "0", "--evaluation.interval", "20", *options,
    ]  # fmt: skip


def area(run: Mapping[str, Any]) -> float:
    """The mean held-out success of the evaluations after the start."""
    return fmean(point["success"] for point in run["curve"]["held_out"][1:])


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Success before and after, and the area under the curve, of each run."""
    lines = ["| seed | coef | success before | after | mean of the curve |", "|---|---|---|---|---|"]
    for run in runs:
        before = f"{run['success_before']:.3f}" + (" (too high)" if run["success_before"] >= RARE else "")
        lines.append(f"| {run['seed']} | {run['coef']:g} | {before} | {run['success_after']:.3f} | {area(run):.3f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--coefs", type=float, nargs="+", default=[0.0, 0.05])
    parser.add_argument("--level", type=int, default=2, help="of code_exec")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    given, options = parser.parse_known_args()
    arms = {given.output / f"seed{seed}-coef{coef:g}": (seed, coef) for seed in given.seeds for coef in given.coefs}
    runs = {folder: arguments(*arm, given.level, options) for folder, arm in arms.items()}
    found = [{"coef": arms[folder][1], **run} for folder, run in play(runs, jobs=given.jobs).items()]
    settings = {"level": given.level, "options": options}
    RESULTS.write_text(json.dumps({"machine": describe(), "settings": settings, "runs": found}, indent=2) + "\n")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
