"""How many episodes does on-policy distillation need to reach its teacher, as a share of GRPO's?

    python -m benchmarks.distillation --output outputs/distillation --seeds 0 1 2 --jobs 2

For every seed the tiny CPU recipe's GRPO run is the teacher. A student with the same seed begins where GRPO began, has
a quarter of its episodes, and learns from the teacher alone: `trainers.reinforce --distill.only`. The same command goes
on with the runs that are missing. Prints a table, and writes RESULTS. Options that it does not know are those of all
runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arms import play
from benchmarks.machine import describe

RESULTS = Path(__file__).parent / "results" / "distillation.json"
STEPS, SIZE = 120, 8
"""Optimizer steps of GRPO, and episodes of one group; both runs have 12 groups a step."""
SHARE = 4
"""The student has one of so many episodes."""
NEAR = 0.05
"""How far below its teacher's success a student may stay."""


def student(seed: int, env: str, teacher: Path, options: Sequence[str]) -> list[str]:
    """The arguments of the student's run: GRPO's steps, each with groups of a quarter of the size."""
    return [
        "trainers.reinforce", "--env", env, "--seed", str(seed), "--steps", str(STEPS),
        "--distill.teacher", str(teacher), "--distill.only", "--reinforce.n_samples", str(SIZE // SHARE),
        "--evaluation.interval", "30", *options,
    ]  # fmt: skip


def table(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Success of each teacher and of its student, and whether the student is near enough."""
    lines = ["| seed | student before | teacher | student after | near |", "|---|---|---|---|---|"]
    for pair in pairs:
        taught, learned = pair["teacher"]["success_after"], pair["student"]
        near = "yes" if learned["success_after"] >= taught - NEAR else "no"
        before, after = learned["success_before"], learned["success_after"]
        lines.append(f"| {learned['seed']} | {before:.2f} | {taught:.2f} | {after:.2f} | {near} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--env", default="code_exec")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    given, options = parser.parse_known_args()
    teachers = {given.output / f"seed{seed}-grpo": seed for seed in given.seeds}
    usual = ["trainers.grpo", "--env", given.env, "--steps", str(STEPS), "--grpo.n_samples", str(SIZE)]
    taught = play(
        {folder: [*usual, "--seed", str(seed), *options] for folder, seed in teachers.items()}, jobs=given.jobs
    )
    learners = {folder: given.output / f"seed{seed}-student" for folder, seed in teachers.items()}
    learned = play(
        {learners[folder]: student(seed, given.env, folder, options) for folder, seed in teachers.items()},
        jobs=given.jobs,
    )
    pairs = [{"teacher": taught[folder], "student": learned[learners[folder]]} for folder in teachers]
    written = {"machine": describe(), "env": given.env, "options": options, "pairs": pairs}
    RESULTS.write_text(json.dumps(written, indent=2) + "\n")
    print(table(pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
