"""Runs of 10 to 1,000 GPUs, simulated: the run's own controller, with engines, environments and trainer made up.

    python -m benchmarks.simulate --gpus 30 100 --staleness 0 2
    python -m benchmarks.simulate --run outputs/RUN --gpus 30      # with the turns of a run of yours
    python -m benchmarks.simulate --save                           # everything that benchmarks/results/simulate.* has

`trainers.controller.loop.Loop`, its schedule and its ledger run as they are, on an event loop whose clock jumps.
docs/scaling.md says what is modelled, and what the plots show.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe
from benchmarks.simulated_cluster import Cluster, Speeds
from benchmarks.simulated_time import World, run
from benchmarks.simulated_workload import Workload, of_run, recorded
from forge_env.core.episode import Group
from forge_env.core.errors import UserError
from trainers.controller.loop import Loop
from trainers.controller.loop_state import LoopSettings
from trainers.objective.advantages import group_relative
from trainers.objective.objective import Objective

RESULTS = Path(__file__).parent / "results"
GPUS = (10, 30, 100, 300, 1000)
STALENESS = (0, 1, 2, 4)
TOKENS = 2000.0  # that an episode of the recorded run is stretched to: its model was tiny, and wrote 21
GROUPS_PER_GPU, MOST_GROUPS = 16, 4096  # of a step: 32,768 episodes are more than anyone trains on at once
MEASURED = 6  # steps
SPLIT_GPUS, SPLIT_FACTORS = 30, (0.4, 0.7, 1.0, 1.4, 2.0, 3.0)
PATIENCE = 1e7  # simulated seconds
COLORS = ("#969696", "#fdae6b", "#4292c6", "#08306b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One simulated run."""

    engines: int
    trainers: int
    staleness: int
    workload: Workload
    groups_per_step: int
    measured: int = 10
    """Steps that the figures are of."""
    speeds: Speeds = field(default_factory=Speeds)
    seed: int = 0

    @property
    def settling(self) -> int:
        """Steps before them: all groups of the window begin at once, and it takes them two rounds to spread."""
        return 2 * (self.staleness + 1) + 2

    @property
    def steps(self) -> int:
        return self.settling + self.measured


@dataclass(slots=True, kw_only=True)
class Figures:
    """What was measured, from the end of the last step of settling to the end of the last step."""

    gpus: int
    engines: int
    trainers: int
    staleness: int
    groups_per_step: int
    steps: int
    simulated_seconds: float
    seconds_per_step: float
    tokens_per_second: float
    """That were sampled."""
    groups_per_second: float
    trainer_idle: float
    """Share of the time in which the trainer neither trains nor writes its weights."""
    engines_idle: float
    """Share of the time in which an engine has no request."""
    engines_fill: float
    """Tokens sampled, as a share of what the engines make with all slots taken."""
    staleness_mean: float
    """Optimizer steps from the weights of a group's admission to those of its step."""
    staleness_max: int
    length_bias: float
    """Mean length of the groups trained on as a multiple of that of all finished ones, since the start."""
    controller_load: float
    """Real seconds of the controller's own code, asyncio's among them, for each simulated second."""
    controller_microseconds: float
    """The same for each group."""


@dataclass
class _MeasuredCluster(Cluster):
    """Takes the marks between which a run is measured."""

    setup: Setup = field(kw_only=True)
    staleness: list[int] = field(default_factory=list, init=False)
    length_bias: float = field(default=1.0, init=False)
    _marks: list[tuple[float, ...]] = field(default_factory=list, init=False)

    def record_step(self, step: int, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        staleness = self.trained_staleness(step, groups)
        if step > self.setup.settling:
            self.staleness += staleness
        self.length_bias = metrics["length_bias"]
        if step in (self.setup.settling, self.setup.steps):
            tokens, busy = self.engine_use()
            cpu = time.thread_time() - self.world.cpu_seconds
            self._marks.append((self.world.now, tokens, busy, self.train_seconds, cpu))

    def figures(self) -> Figures:
        setup = self.setup
        seconds, tokens, busy, train_seconds, cpu = (b - a for a, b in zip(*self._marks, strict=True))
        return Figures(
            gpus=setup.engines + setup.trainers,
            engines=setup.engines,
            trainers=setup.trainers,
            staleness=setup.staleness,
            groups_per_step=setup.groups_per_step,
            steps=setup.measured,
            simulated_seconds=seconds,
            seconds_per_step=seconds / setup.measured,
            tokens_per_second=tokens / seconds,
            groups_per_second=setup.measured * setup.groups_per_step / seconds,
            trainer_idle=max(0.0, 1 - train_seconds / seconds),
            engines_idle=max(0.0, 1 - busy / (seconds * setup.engines)),
            engines_fill=tokens / (seconds * setup.engines * setup.speeds.tokens_per_second(setup.speeds.slots)),
            staleness_mean=sum(self.staleness) / len(self.staleness),
            staleness_max=max(self.staleness),
            length_bias=self.length_bias,
            controller_load=cpu / seconds,
            controller_microseconds=1e6 * cpu / (setup.measured * setup.groups_per_step),
        )


def simulate(setup: Setup) -> Figures:
    """Run the controller over a simulated cluster."""
    world = World()
    cluster = _MeasuredCluster(
        world,
        setup.workload,
        engines=setup.engines,
        trainers=setup.trainers,
        speeds=setup.speeds,
        seed=setup.seed,
        setup=setup,
    )
    objective = Objective(loss=torch.nn.Identity(), advantages=group_relative, group_size=8)
    settings = LoopSettings(
        steps=setup.steps, batch_size=setup.groups_per_step, staleness=setup.staleness, patience=PATIENCE
    )
    run(world, Loop(cluster, objective, settings).run())
    return cluster.figures()


def needs(setup: Setup) -> tuple[float, float]:
    """Seconds that a step takes the engines with all slots taken, and the trainer with all groups there."""
    speeds, workload = setup.speeds, setup.workload
    episodes = setup.groups_per_step * workload.episodes_per_group
    sample = episodes * workload.sampled / (setup.engines * speeds.tokens_per_second(speeds.slots))
    train = episodes * workload.trained / (setup.trainers * speeds.train_tokens)
    return sample, train + speeds.train_overhead + speeds.publish


def balanced(gpus: int, workload: Workload, groups_per_step: int, *, staleness: int, **settings: Any) -> Setup:
    """The split of so many GPUs whose two sides need most nearly the same time for a step."""

    def with_trainers(trainers: int) -> Setup:
        return Setup(
            engines=gpus - trainers,
            trainers=trainers,
            staleness=staleness,
            workload=workload,
            groups_per_step=groups_per_step,
            **settings,
        )

    def difference(trainers: int) -> float:
        sample, train = needs(with_trainers(trainers))
        return max(sample / train, train / sample)

    return with_trainers(min(range(1, gpus), key=difference))


def sweep(setups: Iterable[Setup]) -> list[Figures]:
    """Simulate one after the other, and print a line for each."""
    figures = []
    for setup in setups:
        figures.append(simulate(setup))
        print(shown(figures[-1]), flush=True)
    return figures


def shown(figures: Figures) -> str:
    """One line."""
    f = figures
    return (
        f"{f.gpus:5} GPUs = {f.engines:4} + {f.trainers:3}  S {f.staleness}  {f.tokens_per_second:12,.0f} tokens/s  "
        f"{f.groups_per_second:8.1f} groups/s  idle: trainer {f.trainer_idle:5.1%}, engines {f.engines_idle:5.1%}  "
        f"staleness {f.staleness_mean:.2f}, at most {f.staleness_max}  "
        f"controller {f.controller_load:.4f} ({f.controller_microseconds:.0f} us a group)"
    )


def scale(workload: Workload, gpus: Sequence[int], staleness: Sequence[int], seed: int) -> list[Setup]:
    """Clusters of every size, in balance, with steps that grow with them up to a point."""
    return [
        balanced(size, workload, min(GROUPS_PER_GPU * size, MOST_GROUPS), staleness=s, measured=MEASURED, seed=seed)
        for size in gpus
        for s in staleness
    ]


def splits(workload: Workload, staleness: Sequence[int], seed: int) -> list[Setup]:
    """One cluster, divided in several ways."""
    [middle] = scale(workload, [SPLIT_GPUS], [0], seed)
    trainers = sorted({max(1, round(middle.trainers * factor)) for factor in SPLIT_FACTORS})
    return [
        replace(middle, engines=SPLIT_GPUS - count, trainers=count, staleness=s)
        for count in trainers
        for s in staleness
    ]


def draw(scaled: Sequence[Figures], divided: Sequence[Figures], title: str, path: Path) -> None:
    """Six panels, a line for each staleness."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(14, 8), dpi=110)
    throughput, trainer, engines, split, staleness, load = panels.flat
    panels_of_scale: list[tuple[Any, Callable[[Figures], float], str, str]] = [
        (throughput, lambda f: f.tokens_per_second / f.gpus, "sampled tokens/s for each GPU", "o-"),
        (trainer, lambda f: 100 * f.trainer_idle, "trainer idle, % of the time", "o-"),
        (engines, lambda f: 100 * f.engines_idle, "engines idle, % of the time", "o-"),
        (staleness, lambda f: f.staleness_mean, "staleness of a trained group, optimizer steps", "o-"),
        (load, lambda f: 100 * f.controller_load, "controller, % of one core", "o-"),
    ]
    for number, s in enumerate(sorted({f.staleness for f in scaled})):
        color, label = COLORS[number % len(COLORS)], f"S = {s}"
        mine = [f for f in scaled if f.staleness == s]
        for axes, value, _, style in panels_of_scale:
            axes.plot([f.gpus for f in mine], [value(f) for f in mine], style, color=color, label=label, markersize=5)
        highest = [f.staleness_max for f in mine]
        staleness.plot([f.gpus for f in mine], highest, "_", color=color, markersize=16, markeredgewidth=2)
        mine = [f for f in divided if f.staleness == s]
        x, y = [100 * f.trainers / f.gpus for f in mine], [f.tokens_per_second / 1e3 for f in mine]
        split.plot(x, y, "o-", color=color, label=label, markersize=5)
    for axes, _, name, _ in panels_of_scale:
        axes.set(xscale="log", xlabel="GPUs", title=name)
        axes.set_xticks([f.gpus for f in scaled], [f"{f.gpus:,}" for f in scaled], minor=False)
        axes.minorticks_off()
    for axes in (throughput, trainer, engines, split):
        axes.set_ylim(bottom=0)
    staleness.set_title("staleness of a trained group: mean, and most (bar)")
    load.set(yscale="log")
    split.set(xlabel="trainer's share of the GPUs, %", title=f"{SPLIT_GPUS} GPUs: sampled tokens/s, thousands")
    for axes in panels.flat:
        axes.grid(alpha=0.3)
        axes.title.set_fontsize(11)
    throughput.legend(loc="best")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a run to take the turns from")
    parser.add_argument(
        "--tokens", type=float, default=TOKENS, help="that an episode samples, in the mean; 0: as it was"
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=GPUS)
    parser.add_argument("--staleness", type=int, nargs="+", default=STALENESS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--save", action="store_true", help="divide a cluster in several ways too, write JSON and plots"
    )
    options = parser.parse_args()
    try:
        workload = of_run(options.run) if options.run else recorded()
    except UserError as error:
        parser.error(str(error))
    if options.tokens:
        workload = workload.stretched(options.tokens)
    print(f"{workload.name}: {workload.description}")
    scaled = sweep(scale(workload, options.gpus, options.staleness, options.seed))
    if options.save:
        divided = sweep(splits(workload, options.staleness, options.seed))
        written = {
            "machine": describe(),
            "workload": {"name": workload.name, "description": workload.description},
            "speeds": asdict(Speeds()),
            "scale": [asdict(figures) for figures in scaled],
            "splits": [asdict(figures) for figures in divided],
        }
        (RESULTS / "simulate.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        draw(scaled, divided, f"Simulated: {workload.name}", RESULTS / "simulate.png")


if __name__ == "__main__":
    main()
