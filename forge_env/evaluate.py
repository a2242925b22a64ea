"""Evaluation: the rollout loop with frozen weights, and what its episodes say."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from forge_env.episode import Episode, Group
from forge_env.errors import ForgeError, first_error
from forge_env.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Success over the valid episodes; a fault of ours is counted apart and never as a failure."""

    episodes: tuple[Episode, ...]

    @property
    def valid(self) -> tuple[Episode, ...]:
        return tuple(e for e in self.episodes if e.outcome.is_valid)

    @property
    def successes(self) -> int:
        return sum(is_success(e) for e in self.valid)

    @property
    def success_rate(self) -> float:
        return self.successes / len(self.valid) if self.valid else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the success rate."""
        return wilson(self.successes, len(self.valid))

    @property
    def faults(self) -> int:
        return len(self.episodes) - len(self.valid)

    def __str__(self) -> str:
        low, high = self.interval
        faults = f", {self.faults} faults" if self.faults else ""
        return f"{self.success_rate:.3f} [{low:.3f}, {high:.3f}] over {len(self.valid)} episodes{faults}"


def is_success(episode: Episode) -> bool:
    """Whether an episode earned the full reward of 1."""
    return episode.reward is not None and episode.reward >= 1.0


async def evaluate(
    run_group: Callable[[Task, int], Awaitable[Group]],
    tasks: Sequence[Task],
    *,
    concurrency: int,
    on_done: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Run every task as one group, at most `concurrency` at once; the order of the result is that of the tasks."""
    places = asyncio.Semaphore(concurrency)
    done = 0

    async def one(task: Task, index: int) -> Group:
        nonlocal done
        async with places:
            group = await run_group(task, index)
        done += 1
        on_done(done)
        return group

    try:
        async with asyncio.TaskGroup() as running:
            groups = [running.create_task(one(task, index)) for index, task in enumerate(tasks)]
    except* ForgeError as errors:
        raise first_error(errors) from None
    return Evaluation(episodes=tuple(e for group in groups for e in group.result().episodes))


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927); z is the normal quantile, 1.96 for 95%.

    >>> tuple(round(x, 3) for x in wilson(8, 10))
    (0.49, 0.943)
    """
    if trials == 0:
        return 0.0, 1.0
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials**2)) / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)
