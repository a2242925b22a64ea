"""Asynchronous against synchronous training, on simulated clusters with long-tailed episodes and the real controller.

    python -m benchmarks.asynchrony             # all of it, into benchmarks/results/asynchrony.json and .png
    python -m benchmarks.asynchrony --quick     # one sigma only, and nothing is written

16 GPUs, 512 groups of 8 to a step: 4,096 episodes of one to five turns. Sampled tokens and environment seconds of a
turn are lognormal, with the same sigma, and an episode is cut off at 16,384 tokens. The split is the one whose two
sides need most nearly the same time for a step when neither waits; no staleness has a split of its own, except where it
says so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.simulate import COLORS, RESULTS, Figures, Setup, balanced, needs, simulate
from benchmarks.simulated_cluster import Speeds
from benchmarks.simulated_workload import lognormal

GPUS, GROUPS, SIGMA = 16, 512, 1.0
SIGMAS = (0.5, 0.8, 1.0, 1.2)
STALENESS = (0, 1, 2, 4)
BATCHES = (128, 256, 512, 1024)
AIM_SPEEDUP, AIM_IDLE = 1.8, 0.10


def point(sigma: float, groups: int, staleness: int) -> Setup:
    return balanced(GPUS, lognormal(sigma), groups, staleness=staleness)


def row(setup: Setup, baseline: Figures | None) -> tuple[dict[str, Any], Figures]:
    """The figures of one setup, printed, and how much faster it is than the baseline."""
    figures = simulate(setup)
    sample, train = needs(setup)
    speedup = figures.groups_per_second / (baseline or figures).groups_per_second
    print(
        f"  S {setup.staleness}  {setup.engines} + {setup.trainers} GPUs  {figures.seconds_per_step:6.1f} s a step "
        f"(engines need {sample:.1f}, trainer {train:.1f})  {speedup:.2f}x  idle: trainer {figures.trainer_idle:5.1%}, "
        f"engines {figures.engines_idle:5.1%}  staleness at most {figures.staleness_max}",
        flush=True,
    )
    values = {"speedup": speedup, "sample_seconds_needed": sample, "train_seconds_needed": train, **asdict(figures)}
    return values, figures


def series(name: str, setups: Iterable[Setup]) -> list[dict[str, Any]]:
    """Setups of one workload on one split; the first is synchronous."""
    print(name)
    rows, baseline = [], None
    for setup in setups:
        values, figures = row(setup, baseline)
        baseline = baseline or figures
        rows.append(values)
    return rows


def own_splits() -> list[dict[str, Any]]:
    """The best of several splits for each staleness: what S = 0 reaches with a split that is made for it."""
    print(f"the best split for each, sigma {SIGMA:g}")
    rows: list[dict[str, Any]] = []
    baseline: Figures | None = None
    for staleness in STALENESS:
        middle = point(SIGMA, GROUPS, staleness)
        tried = [
            replace(middle, engines=GPUS - trainers, trainers=trainers)
            for trainers in range(max(1, middle.trainers - 1), middle.trainers + 4)
        ]
        best = max(tried, key=lambda setup: simulate(setup).groups_per_second)
        values, figures = row(best, baseline)
        baseline = baseline or figures
        rows.append(values)
    return rows


def draw(by_sigma: dict[str, list[dict[str, Any]]], by_batch: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(14, 4.6), dpi=110)
    speedup, idle, batch = panels
    values: list[tuple[Any, dict[str, list[dict[str, Any]]], Callable[[dict[str, Any]], float]]] = [
        (speedup, by_sigma, lambda figures: figures["speedup"]),
        (idle, by_sigma, lambda figures: 100 * figures["trainer_idle"]),
        (batch, by_batch, lambda figures: 100 * figures["trainer_idle"]),
    ]
    for number, staleness in enumerate(STALENESS):
        for axes, rows, value in values:
            y = [value(figures[number]) for figures in rows.values()]
            axes.plot(list(rows), y, "o-", color=COLORS[number], label=f"S = {staleness}")
    speedup.axhline(AIM_SPEEDUP, color="#d62728", linestyle=":", label=f"{AIM_SPEEDUP:g}x")
    speedup.set(xlabel="sigma of tokens and environment seconds of a turn", ylim=(0, None))
    speedup.set_title(f"steps per second against S = 0, {GROUPS} groups a step", fontsize=11)
    idle.set(xlabel="sigma of tokens and environment seconds of a turn")
    idle.set_title(f"trainer idle, % of the time, {GROUPS} groups a step", fontsize=11)
    batch.set(xlabel="groups of a step")
    batch.set_title(f"trainer idle, % of the time, sigma {SIGMA:g}", fontsize=11)
    for axes in (idle, batch):
        axes.axhline(100 * AIM_IDLE, color="#d62728", linestyle=":", label=f"{100 * AIM_IDLE:g} %")
        axes.set_ylim(0, 100)
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9)
    figure.suptitle(f"Simulated: {GPUS} GPUs in balance, groups of 8 episodes with 1 to 5 lognormal turns")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one sigma only, and write nothing")
    options = parser.parse_args()
    sigmas: Sequence[float] = (SIGMA,) if options.quick else SIGMAS
    workloads = {f"{sigma:g}": lognormal(sigma).description for sigma in sigmas}
    by_sigma = {
        f"{sigma:g}": series(
            f"sigma {sigma:g}: {workloads[f'{sigma:g}']}", (point(sigma, GROUPS, s) for s in STALENESS)
        )
        for sigma in sigmas
    }
    if options.quick:
        return
    by_batch = {
        f"{groups}": by_sigma[f"{SIGMA:g}"]
        if groups == GROUPS
        else series(f"{groups} groups a step, sigma {SIGMA:g}", (point(SIGMA, groups, s) for s in STALENESS))
        for groups in BATCHES
    }
    written = {
        "machine": describe(),
        "aims": {"speedup": AIM_SPEEDUP, "trainer_idle": AIM_IDLE},
        "speeds": asdict(Speeds()),
        "workloads": workloads,
        "by_sigma": by_sigma,
        "by_batch": by_batch,
        "own_splits": own_splits(),
    }
    (RESULTS / "asynchrony.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    draw(by_sigma, by_batch, RESULTS / "asynchrony.png")


if __name__ == "__main__":
    main()
