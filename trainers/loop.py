"""The loop: two coroutines, rollouts and training, and the rule that keeps them together.

Admission bounds staleness. At most (S + 1) * batch_size groups are open, open meaning admitted and not yet trained with
the resulting weights in every engine. So a group admitted at weight version v trains at the latest in the step that
starts from v + S. S = 0 is synchronous.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from forge_env.episode import Group
from forge_env.errors import ServiceError, first_error
from forge_env.faults import SHRINK
from forge_env.types import Task
from trainers.advantages import has_signal
from trainers.batch import Sample
from trainers.objective import Objective

__all__ = ["MAX_FAULTS_IN_A_ROW", "Loop", "Objective", "repeat"]

MAX_FAULTS_IN_A_ROW = 32  # groups with too few valid episodes; then something is broken for good


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
    warn: Callable[[str], None] = logging.getLogger(__name__).warning
    signal_warning: int = 32
    """Groups without a signal in a row after which the run says so, where the objective needs one."""
    signal_error: int = 512
    """And after which it ends."""
    faults: Counter[str] = field(default_factory=Counter)
    """Episodes of each fault, and groups that were dropped: "dropped groups" had too few valid episodes, "groups
    without signal" one reward for all of them; each also "in a row"."""

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
            metrics |= {"groups_dropped": float(self.faults["dropped groups"])}
            metrics |= {"groups_without_signal": float(self.faults["groups without signal"])}
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
        if not self.keeps(group):
            self._count_faulty(group)
        elif self.objective.needs_signal and not has_signal(group.rewards):
            self._count_flat(group)
        else:
            self.faults["dropped groups in a row"] = self.faults["groups without signal in a row"] = 0
            result.set_result(group)
            return
        result.set_result(None)
        self._open.release()

    def _count_faulty(self, group: Group) -> None:
        """Count a group with too few valid episodes."""
        self.faults["dropped groups"] += 1
        self.faults["dropped groups in a row"] += 1
        if self.faults["dropped groups in a row"] >= MAX_FAULTS_IN_A_ROW:
            reason = next((e.error for e in group.faults if e.error), "none was given")
            raise ServiceError(
                f"{MAX_FAULTS_IN_A_ROW} groups in a row had too few valid episodes; the last error: {reason}"
            )

    def _count_flat(self, group: Group) -> None:
        """Count a group whose valid episodes all have one reward; it is no fault, so it ends a row of faults."""
        self.faults["dropped groups in a row"] = 0
        self.faults["groups without signal"] += 1
        self.faults["groups without signal in a row"] += 1
        row = self.faults["groups without signal in a row"]
        said = f"{row} groups in a row were dropped, each with one reward for all its episodes, {group.rewards[0]:g} in"
        if row >= self.signal_error:
            raise ServiceError(f"{said} the last: the tasks are too easy or too hard, or dynamic sampling must be off")
        if row % self.signal_warning == 0:
            self.warn(f"{said} the last; the run ends at {self.signal_error}")

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
            row = self.faults["groups without signal in a row"]
            flat = f"the last {row} groups were dropped, each with one reward for all its episodes"
            reason = flat if row else "the environments or the policy hang"
            raise ServiceError(f"no finished group for {self.patience:g} s: {reason}") from None


def repeat(tasks: Sequence[Task]) -> Iterator[Task]:
    """Go through the tasks again and again."""
    while True:
        yield from tasks
