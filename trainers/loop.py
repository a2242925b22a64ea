"""The loop: two coroutines, rollouts and training, and the rule that keeps them together.

Admission bounds staleness. At most (S + 1) * batch_size groups are open, open meaning admitted and not yet trained with
the resulting weights in every engine. So a group admitted at weight version v trains at the latest in the step that
starts from v + S. S = 0 is synchronous.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge_env.episode import Episode, Group
from forge_env.errors import ServiceError, first_error
from forge_env.faults import SHRINK
from forge_env.types import Task
from trainers.batch import Sample

if TYPE_CHECKING:
    from torch import nn

MAX_FAULTS_IN_A_ROW = 32  # groups with too few valid episodes; then something is broken for good


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What an algorithm's page hands to the loop."""

    loss: nn.Module
    advantages: Callable[[Sequence[float]], list[float]]
    group_size: int
    kl_reference: str = ""
    """"generator" where the loss has a KL penalty and there is no reference model."""

    def samples(self, groups: Sequence[Group]) -> list[Sample]:
        """Turn groups into samples. Faults have no reward, and take no part in a baseline."""
        return [
            Sample(rows=episode.rows, advantage=advantage, ref_logprobs=self._reference(episode))
            for group in groups
            for episode, advantage in zip(group.valid, self.advantages(group.rewards), strict=True)
        ]

    def _reference(self, episode: Episode) -> tuple[float, ...] | None:
        if not self.kl_reference:
            return None
        return tuple(
            logprob for row in episode.rows for logprob, sampled in zip(row.logprobs, row.mask, strict=True) if sampled
        )


@dataclass
class Loop:
    """One run of a policy-gradient algorithm."""

    objective: Objective
    tasks: Iterator[Task]
    run_group: Callable[[Task, int], Awaitable[Group]]
    """(task, index of the group) -> its episodes."""
    train_step: Callable[[Sequence[Sample]], Awaitable[dict[str, float]]]
    sync_weights: Callable[[int], Awaitable[dict[str, float]]]
    """Publish the trainer's weights as a version, and return when every engine has it."""
    on_step: Callable[[int, Sequence[Group], dict[str, float]], None]
    steps: int
    batch_size: int
    staleness: int = 0
    keeps: Callable[[Group], bool] = SHRINK.keeps
    """Whether a group has enough valid episodes to be trained on."""
    patience: float = 600.0
    """Seconds to wait for one step's groups."""
    faults: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Train for `steps` optimizer steps.

        Raises:
            ServiceError: when no groups come, or only broken ones.
        """
        self._admitted: asyncio.Queue[asyncio.Future[Group | None]] = asyncio.Queue()
        self._open = asyncio.Semaphore((self.staleness + 1) * self.batch_size)
        try:
            async with asyncio.TaskGroup() as tasks:
                rollouts = tasks.create_task(self.rollouts())
                tasks.create_task(self.training()).add_done_callback(lambda _: rollouts.cancel())
        except* Exception as errors:
            raise first_error(errors) from None

    async def rollouts(self) -> None:
        """Admit a task whenever a place is free; its group comes back on its own time."""
        async with asyncio.TaskGroup() as groups:
            for index, task in enumerate(self.tasks):
                await self._open.acquire()
                result: asyncio.Future[Group | None] = asyncio.get_running_loop().create_future()
                self._admitted.put_nowait(result)
                groups.create_task(self._rollout(task, index, result))

    async def training(self) -> None:
        """Train on the next groups, put the new weights into the engines, free the places."""
        for step in range(1, self.steps + 1):
            started = time.perf_counter()
            groups = [await self._next_group() for _ in range(self.batch_size)]
            rollout_done = time.perf_counter()
            metrics = await self.train_step(self.objective.samples(groups))
            train_done = time.perf_counter()
            metrics |= await self.sync_weights(step)
            seconds = {
                "seconds/rollout": rollout_done - started,
                "seconds/train": train_done - rollout_done,
                "seconds/sync": time.perf_counter() - train_done,
                "seconds/step": time.perf_counter() - started,
            }
            for _ in groups:
                self._open.release()
            self.on_step(step, groups, metrics | seconds)

    async def _rollout(self, task: Task, index: int, result: asyncio.Future[Group | None]) -> None:
        group = await self.run_group(task, index)
        self.faults.update(e.outcome.value for e in group.faults)
        if self.keeps(group):
            self.faults["dropped groups in a row"] = 0
            result.set_result(group)
            return
        self.faults["dropped groups in a row"] += 1
        self.faults["dropped groups"] += 1
        if self.faults["dropped groups in a row"] >= MAX_FAULTS_IN_A_ROW:
            reason = next((e.error for e in group.faults if e.error), "none was given")
            raise ServiceError(
                f"{MAX_FAULTS_IN_A_ROW} groups in a row had too few valid episodes; the last error: {reason}"
            )
        result.set_result(None)
        self._open.release()

    async def _next_group(self) -> Group:
        """Wait for the oldest open group that is not dropped.

        Taking groups in the order of their admission is what bounds staleness: at most (S + 1) * batch_size - 1 others
        are ahead of a group. A straggler delays the others, and never grows stale.
        """
        try:
            async with asyncio.timeout(self.patience):
                while True:
                    group = await (await self._admitted.get())
                    if group is not None:
                        return group
        except TimeoutError:
            reason = "the environments or the policy hang"
            raise ServiceError(f"no finished group for {self.patience:g} s: {reason}") from None


def repeat(tasks: Sequence[Task]) -> Iterator[Task]:
    """Go through the tasks again and again."""
    while True:
        yield from tasks
