"""Samplers of training tasks against uniform order: the held-out curve, and the episodes to a success of 0.7.

    python -m benchmarks.task_sampling --seeds 0 1 2 --jobs 8 --out outputs/task_sampling

For each seed one run of code_exec warms a tiny model up. From these weights one run for each sampler trains on
`MixedTasks`: look-ups of level 1, among them tasks that nobody solves, as real data has them. A part (`--wrong`) has
wrong expected values and looks like the others, so that only visits tell it. A part (`--hard`) is of another level, and
the model was never shown it. Look-ups become tasks that are always solved while the run goes on. All held-out tasks are
right ones of level 1. With `--wrong 0 --hard 0` the tasks are those of code_exec.

A run that is complete below --out is not started again. The folders of the runs stay there. For each sampler the mean
success over the curve is printed (its area, over the episodes of the shortest run of the seed). Beside it are the
episodes that were sampled until success reaches the goal, also as a multiple of uniform's (of all its episodes, if it
never does: a bound); between two evaluations the curve is a straight line. All of it goes to
benchmarks/results/task_sampling.json (--results). Further options are handed to every run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from benchmarks.arms import play
from benchmarks.machine import describe
from envs.code_exec.env import CodeExec
from forge_env.core.types import Task
from forge_env.records.run_files import metrics_of
from forge_env.utils.statistics import clustered_mean

RESULTS = Path(__file__).parent / "results" / "task_sampling.json"
ALLOWED = 0.7
"""The episodes to the goal must be at most this part of uniform's."""
TINY = ("--env.max_turns=3", "--env.max_turn_tokens=32", "--env.max_tokens=512")
"""The limits of the warm-up, which a given model would not have."""
Curve = Sequence[tuple[float, float]]
"""Episodes that were sampled before an evaluation, and the held-out success."""


class MixedTasks(CodeExec):
    """Look-ups of code_exec, among them tasks that are never solved."""

    @classmethod
    def tasks(  # type: ignore[override]
        cls,
        split: str = "train",
        *,
        count: int,
        seed: int = 0,
        hard: float = 0.3,
        hard_level: int = 4,
        wrong: float = 0.3,
    ) -> list[Task]:
        """Return tasks of level 1; in the split train a part is of another level, and a part has wrong targets.

        Args:
            hard: the part of the level `hard_level`.
            wrong: the part whose expected values are one too high.
        """
        tasks = CodeExec.tasks(split, count=count, seed=seed)
        if split == "test":
            return list(tasks)
        others = CodeExec.tasks(split, count=count, seed=seed, level=hard_level)
        rng, mixed = random.Random(f"{seed}/mixed"), list[Task]()
        for task, other in zip(tasks, others, strict=True):
            fate = rng.random()
            if fate < wrong:
                task = replace(task, target=[[x, value + 1] for x, value in task.target], id="")
            mixed.append(other if wrong <= fate < wrong + hard else task)
        return mixed

    @classmethod
    def limits(cls) -> dict[str, float]:  # type: ignore[override]
        return {}


def curve_of(run: Path) -> Curve:
    """The held-out curve of a run, over the episodes of all groups that came back, dropped ones too."""
    algorithm = json.loads((run / "summary.json").read_text())["algorithm"]
    size = yaml.safe_load((run / "config.yaml").read_text())[algorithm]["n_samples"]
    sampled, total = {0: 0.0}, 0.0
    for record in metrics_of(run, "train"):
        total += record["signal/groups"] * size
        sampled[int(record["step"])] = total
    return [(sampled[int(record["step"])], record["success"]) for record in metrics_of(run, "evaluation")]


def _until(curve: Curve, episodes: float) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """The pieces of a curve up to a number of episodes."""
    for (x, y), (right, top) in pairwise(curve):
        if x >= episodes:
            return
        end = min(right, episodes)
        yield (x, y), (end, y + (top - y) * (end - x) / (right - x))


def area(curve: Curve, episodes: float) -> float:
    """The mean success over the first episodes.

    >>> area([(0, 0.0), (10, 1.0), (20, 1.0)], 20)
    0.75
    """
    return sum((right - x) * (y + top) / 2 for (x, y), (right, top) in _until(curve, episodes)) / episodes


def episodes_to(curve: Curve, goal: float) -> float | None:
    """The episodes until success reaches a goal; None if it never does.

    >>> episodes_to([(0, 0.0), (10, 0.5), (20, 1.0)], 0.75)
    15.0
    """
    if curve[0][1] >= goal:
        return 0.0
    return next(
        (x + (goal - y) / (top - y) * (right - x) for (x, y), (right, top) in pairwise(curve) if top >= goal), None
    )


def figures(runs: dict[tuple[str, int], Path], samplers: Sequence[str], goal: float) -> dict[str, Any]:
    """The figures of each sampler, by seed, and against uniform."""
    curves = {key: curve_of(run) for key, run in runs.items()}
    seeds = sorted({seed for _, seed in runs})
    shortest = {seed: min(curves[by, seed][-1][0] for by in samplers) for seed in seeds}
    result: dict[str, Any] = {}
    for by in samplers:
        areas = [area(curves[by, seed], shortest[seed]) for seed in seeds]
        reached = [episodes_to(curves[by, seed], goal) for seed in seeds]
        summaries = [json.loads((runs[by, seed] / "summary.json").read_text()) for seed in seeds]
        last = [metrics_of(runs[by, seed], "train")[-1] for seed in seeds]
        result[by] = {
            "area": areas,
            "episodes_to_goal": reached,
            "success_after": [summary["success_after"] for summary in summaries],
            "signal_share": [summary["signal_share"] for summary in summaries],
            "visits": [{name: n for name, n in record.items() if name.startswith("visits/")} for record in last],
            "curves": [curves[by, seed] for seed in seeds],
        }
        if "uniform" in samplers:
            # A uniform run that never reached the goal needs more than all of its episodes: the ratio is then a bound.
            usual = [
                curves["uniform", seed][-1][0] if n is None else n
                for seed, n in zip(seeds, result["uniform"]["episodes_to_goal"], strict=True)
            ]
            ratios = [mine / other for mine, other in zip(reached, usual, strict=True) if mine is not None and other]
            gains = clustered_mean([a - b for a, b in zip(areas, result["uniform"]["area"], strict=True)])
            complete = len(ratios) == len(seeds)
            result[by] |= {
                "episodes_ratios": ratios,
                "episodes_ratio": fmean(ratios) if complete else None,
                "area_gain": gains.value,
                "area_gain_ci95": gains.interval,
                "holds": complete and fmean(ratios) <= ALLOWED,
            }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samplers", nargs="+", default=["uniform", "window"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=5, help="steps between two evaluations")
    parser.add_argument("--batch-size", type=int, default=12, help="groups of a step")
    parser.add_argument("--tasks", type=int, default=256, help="training tasks")
    parser.add_argument("--wrong", type=float, default=0.3, help="part of them with wrong targets")
    parser.add_argument("--hard", type=float, default=0.3, help="part of them of another level")
    parser.add_argument("--hard-level", type=int, default=4)
    parser.add_argument("--goal", type=float, default=0.7, help="held-out success")
    parser.add_argument("--algorithm", default="grpo")
    parser.add_argument("--base-steps", type=int, default=1, help="steps of the run that warms the model up")
    parser.add_argument("--out", type=Path, default=Path("outputs/task_sampling"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, more = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    bases = {seed: options.out / f"base-{seed}" for seed in options.seeds}
    base = ["trainers.grpo", "--env=code_exec", f"--steps={options.base_steps}"]
    play({folder: [*base, f"--seed={seed}"] for seed, folder in bases.items()}, jobs=options.jobs)
    runs = {(by, seed): options.out / f"{by}-{seed}" for seed in options.seeds for by in options.samplers}
    mixed = [f"trainers.{options.algorithm}", "--env=benchmarks.task_sampling:MixedTasks", *TINY]
    mixed += [f"--env.options.{name}={getattr(options, name)}" for name in ("wrong", "hard", "hard_level")]
    mixed += [f"--steps={options.steps}", f"--evaluation.interval={options.every}", f"--tasks={options.tasks}"]
    mixed += [f"--training.batch_size={options.batch_size}", "--evaluation.greedy=false", *more]
    own = {
        folder: [*mixed, f"--model={bases[seed]}", f"--seed={seed}", f"--dataset.sampler={by}"]
        for (by, seed), folder in runs.items()
    }
    play(own, jobs=options.jobs)
    result = figures(runs, options.samplers, options.goal)
    given = {name: value for name, value in vars(options).items() if name not in ("out", "jobs", "results")}
    written = {"machine": describe(), "options": given | {"more": more}, "samplers": result}
    options.results.write_text(json.dumps(written, indent=2) + "\n")
    titles = ("sampler", "mean success", "groups with signal", f"episodes to {options.goal:g}", "of uniform's")
    print(f"| {' | '.join(titles)} | at most {ALLOWED:g} |")
    print("|---|---|---|---|---|---|")
    for by, found in result.items():
        reached = ", ".join("never" if n is None else f"{n:,.0f}" for n in found["episodes_to_goal"])
        ratio = "-" if found.get("episodes_ratio") is None else f"{found['episodes_ratio']:.2f}"
        shares = f"{fmean(found['area']):.3f} | {fmean(found['signal_share']):.2f}"
        print(f"| {by} | {shares} | {reached} | {ratio} | {'yes' if found.get('holds') else 'no'} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
