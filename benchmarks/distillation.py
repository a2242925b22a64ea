"""Does on-policy distillation reach its teacher with a quarter of the episodes that the teacher was trained on?

    python -m benchmarks.distillation --output outputs/distillation --seeds 0 1 2 3 4 5 6 7

For every seed there are two runs of the tiny CPU recipe, which begin with the same model and the same warm-up:

    grpo      the teacher: STEPS steps of 12 groups of 8 episodes
    student   as many steps of groups of 2 episodes, from the teacher alone: `trainers.reinforce --distill.only`

GRPO's own success after a quarter of its steps, which are as many episodes, stands beside it. Students start when all
teachers are done. Each run needs two cores and four minutes; --steps 2 tries it. The same command goes on with the
runs that are missing. Prints a table, and writes --results. Options that it does not know are those of all runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arms import play
from benchmarks.machine import describe
from forge_env.utils.statistics import clustered_mean

RESULTS = Path(__file__).parent / "results" / "distillation.json"
STUDENT = ("--distill.only", "--distill.top_k", "16", "--training.learning_rate", "1.8e-3")
"""Three times the learning rate of the recipe: without top_k it is too high, and the recipe's is too low."""
STEPS, SIZE = 60, 8
"""Optimizer steps of a run, and episodes of one group of GRPO."""
SHARE = 4
"""The student has one of so many episodes."""
NEAR = 0.05
"""How far below its teacher's success a student may stay."""


def arms(folder: Path, seed: int, env: str, steps: int, options: Sequence[str]) -> dict[str, tuple[Path, list[str]]]:
    """The folder and the arguments of each run of a seed. An evaluation comes after each quarter of the steps."""
    common = ["--env", env, "--seed", str(seed), "--steps", str(steps), *options]
    common += ["--evaluation.interval", str(max(1, steps // SHARE))]
    teacher = folder / f"seed{seed}-grpo"
    taught = ["--distill.teacher", str(teacher), *STUDENT, "--reinforce.n_samples", str(SIZE // SHARE)]
    runs = {
        "grpo": ["trainers.grpo", "--grpo.n_samples", str(SIZE), *common],
        "student": ["trainers.reinforce", *taught, *common],
    }
    return {arm: (folder / f"seed{seed}-{arm}", arguments) for arm, arguments in runs.items()}


def at_a_quarter(run: Mapping[str, Any]) -> float:
    """The held-out success of a run after a quarter of its steps."""
    points = run["curve"]["held_out"]
    return float(next(p["success"] for p in points if p["step"] >= max(1, run["steps"] // SHARE)))


def table(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Success of each run, whether the student is near its teacher, and the mean differences over the seeds."""
    lines = ["| seed | before | GRPO | GRPO at a quarter | student | near |", "|---|---|---|---|---|---|"]
    for runs in seeds:
        goal, learned = runs["grpo"]["success_after"], runs["student"]["success_after"]
        figures = [runs["grpo"]["success_before"], goal, at_a_quarter(runs["grpo"])]
        cells = [f"{figure:.2f}" for figure in (*figures, learned)]
        near = "yes" if learned >= goal - NEAR else "no"
        lines.append(f"| {runs['grpo']['seed']} | {' | '.join(cells)} | {near} |")
    less = clustered_mean([runs["student"]["success_after"] - runs["grpo"]["success_after"] for runs in seeds])
    lines.append(f"student less GRPO: {less.value:+.3f} in the mean, 95% interval [{less.low:+.3f}, {less.high:+.3f}]")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--env", default="code_exec")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="runs at a time")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given, options = parser.parse_known_args()
    runs = {seed: arms(given.output, seed, given.env, given.steps, options) for seed in given.seeds}
    found: dict[Path, dict[str, Any]] = {}
    for arm in ("grpo", "student"):
        found |= play(dict(of_seed[arm] for of_seed in runs.values()), jobs=given.jobs)
    seeds = [{arm: found[folder] for arm, (folder, _) in of_seed.items()} for of_seed in runs.values()]
    written = {"machine": describe(), "env": given.env, "steps": given.steps, "options": options, "seeds": seeds}
    given.results.write_text(json.dumps(written, indent=2) + "\n")
    print(table(seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
