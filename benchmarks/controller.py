"""How many group transitions a second the controller's own state machine makes: Schedule, Ledger and Loop, no actors.

    python -m benchmarks.controller [--json FILE] [--profile]

A group that is admitted, one that finishes, one that is trained on and one that is dropped are a transition each, so a
group makes three of them, or two. Groups cost nothing and neither do steps; batches of 1,024 and S = 3 keep 4,096 open.

    at once       a group is back as soon as it is begun
    one by one    groups come back each in a turn of the event loop of its own, the oldest first
    shuffled      the same, in any order, so that the window is full of stragglers
    with drops    shuffled, and one group in four has no valid episodes

The process is held to two cores, and uses one.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.machine import describe
from forge_env.core.episode import Episode, Group
from forge_env.core.types import Outcome, Task
from trainers.controller.ledger import Ledger
from trainers.controller.loop import Loop
from trainers.controller.loop_state import LoopSettings, LoopState
from trainers.controller.loop_work import LoopWork
from trainers.objective.advantages import group_relative
from trainers.objective.objective import Objective

BATCH, STALENESS, STEPS, REPEATS = 1024, 3, 30, 3
AIM = 2000.0
TASK = Task(prompt=(), target=None)
WAYS = ("at once", "one by one", "shuffled", "with drops")


def make_group(outcome: Outcome) -> Group:
    """Eight episodes; the same group stands for every number."""
    reward = 1.0 if outcome.is_valid else None
    episodes = (Episode(task=TASK, turns=(), outcome=outcome, reward=reward, id=str(i)) for i in range(8))
    return Group(task=TASK, episodes=tuple(episodes), id="any")


GOOD, BAD = make_group(Outcome.SCORED), make_group(Outcome.ENV_FAULT)


class Groups(LoopWork):
    """Groups in flight, which come back one in each turn of the event loop; steps and updates cost nothing."""

    def __init__(self, way: str, ledger: Ledger) -> None:
        self.most_open = 0
        self._way = way
        self._ledger = ledger
        self._rng = random.Random(0)
        self._open: list[asyncio.Future[None]] = []
        self._engine_steps = 0

    @property
    def engine_steps(self) -> int:
        return self._engine_steps

    def task(self, number: int) -> Task:
        return TASK

    async def run_group(self, task: Task, number: int) -> Group:
        # Steps take no time: what was taken is trained on before anything else happens.
        self.most_open = max(self.most_open, number + 1 - self._ledger.trained - self._ledger.dropped.total())
        if self._way == "at once":
            return GOOD
        back = asyncio.get_running_loop().create_future()
        self._open.append(back)
        await back
        return BAD if self._way == "with drops" and number % 4 == 0 else GOOD

    async def train_step(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        return {}

    async def publish_weights(self, step: int) -> dict[str, float]:
        return {}

    async def pull_weights(self, step: int) -> dict[str, float]:
        self._engine_steps = step
        return {}

    async def bring_back(self) -> None:
        while True:
            await asyncio.sleep(0)
            if self._open:
                chosen = 0 if self._way == "one by one" else self._rng.randrange(len(self._open))
                self._open.pop(chosen).set_result(None)


async def measure(way: str, steps: int = STEPS) -> dict[str, float]:
    """Transitions per second of one run; most_open is how many groups were open at most."""

    ledger = Ledger()
    groups = Groups(way, ledger)
    objective = Objective(loss=torch.nn.Identity(), advantages=group_relative, group_size=8)
    settings = LoopSettings(steps=steps, batch_size=BATCH, staleness=STALENESS)
    loop = Loop(groups, objective, settings, LoopState(ledger=ledger))
    started, cpu = time.perf_counter(), time.thread_time()
    bringing = asyncio.create_task(groups.bring_back())
    await loop.run()
    seconds, cpu_seconds = time.perf_counter() - started, time.thread_time() - cpu
    bringing.cancel()
    transitions = 3 * ledger.trained + 2 * ledger.dropped.total()
    return {
        "transitions": transitions,
        "transitions_per_second": transitions / seconds,
        "transitions_per_cpu_second": transitions / cpu_seconds,
        "most_open": groups.most_open,
    }


def best(way: str) -> dict[str, float]:
    """The best of a few runs: others share the machine."""
    runs = [asyncio.run(measure(way)) for _ in range(REPEATS)]
    return max(runs, key=lambda run: run["transitions_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    parser.add_argument("--profile", action="store_true", help="show where the time of the shuffled groups goes")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    figures = {way: best(way) for way in WAYS}
    for way, results in figures.items():
        print(
            f"{way:>12}  {results['transitions_per_second']:10,.0f} transitions/s  "
            f"{results['most_open']:,.0f} groups open at most  (aim: {AIM:,.0f})"
        )
    if options.json:
        settings = {"batch_size": BATCH, "staleness": STALENESS, "steps": STEPS, "aim": AIM}
        text = json.dumps({"machine": describe(), **settings, "ways": figures}, indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")
    if options.profile:
        with cProfile.Profile() as profile:
            asyncio.run(measure("shuffled"))
        pstats.Stats(profile).sort_stats("tottime").print_stats(16)


if __name__ == "__main__":
    main()
