"""The loop: two coroutines, rollouts and training, and the rule that keeps them together.

trainers/controller/schedule.py says which group may begin and which groups a step takes, so that none trains on
weights that are more than S steps newer than those that sampled it; trainers/controller/ledger.py keeps account of
every prompt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TypeVar

from forge_env.core.episode import Group
from forge_env.core.errors import InvariantError, ReplicaDied, ServiceError, first_error
from forge_env.core.faults import SHRINK
from forge_env.core.types import Outcome, Task
from trainers.batching.lengths import Lengths
from trainers.controller.ledger import Ledger
from trainers.controller.ready import ReadyGroup
from trainers.controller.schedule import Schedule
from trainers.objective.objective import Objective
from trainers.setup.deadlines import while_moving

T = TypeVar("T")
RunWave = Callable[[Sequence[tuple[Task, int]]], Awaitable[Sequence[Group]]]

MAX_FAULTS_IN_A_ROW = 32  # groups with too few valid episodes; then something is broken for good


async def _unknown() -> object:
    """Only groups that come back are movement."""
    return None


@dataclass
class Loop:
    """One run of a policy-gradient algorithm."""

    objective: Objective
    task: Callable[[int], Task]
    """The task of a group's number; there is one for every number from 0 on."""
    run_group: Callable[[Task, int], Awaitable[Group]]
    """(task, number of the group) -> its episodes."""
    train_step: Callable[[Sequence[Group]], Awaitable[dict[str, float]]]
    """Make the samples of a step's groups, and take one optimizer step on them."""
    publish_weights: Callable[[int], Awaitable[dict[str, float]]]
    """Publish the trainer's weights after so many steps; returns when the next step cannot change them any more."""
    pull_weights: Callable[[int], Awaitable[dict[str, float]]]
    """Let the engines take over what was published; returns when every one has it."""
    on_step: Callable[[int, Sequence[Group], dict[str, float]], None]
    steps: int
    batch_size: int
    """Groups of one optimizer step."""
    run_wave: RunWave | None = None
    """In the place of `run_group`: all groups that may begin do so at once, and the next ones when all are back. Which
    episodes run together then does not depend on the clock."""
    staleness: int = 0
    sync_interval: int = 1
    """Optimizer steps between two updates of the engines; at most staleness + 1, or no group could ever begin."""
    begin_window: Callable[[Sequence[Sequence[Group]]], Awaitable[dict[str, float]]] | None = None
    """Awaited before the first step after an update, with the groups of every step until the next one (a window), which
    are then all taken together; returns metrics. Without it, each step takes its groups when it begins."""
    keeps: Callable[[Group], bool] = SHRINK.keeps
    """Whether a group has enough valid episodes to be trained on."""
    patience: float = 600.0
    """Seconds to wait for one step's groups while nothing moves."""
    progress: Callable[[], Awaitable[object]] = _unknown
    """How far the engines and environments have come; two that are equal say that nothing has moved in between."""
    evaluate: Callable[[int], Awaitable[None]] | None = None
    """Awaited after so many steps, when every engine has their weights and gets no others meanwhile."""
    is_evaluated: Callable[[int], bool] = lambda step: False
    """Whether the weights of a step are; only those that the engines get."""
    after_step: Callable[[int], Awaitable[None]] | None = None
    """Awaited between two steps, once the first is written down: the place of checkpoints."""
    steps_done: int = 0
    """Steps that were taken before, where a run goes on."""
    ledger: Ledger = field(default_factory=Ledger)
    """What has become of every prompt; that of the checkpoint, where a run goes on."""
    ready: InitVar[Sequence[ReadyGroup]] = ()
    """Groups that were ready at the checkpoint, where a run goes on."""
    lengths: Lengths = field(default_factory=Lengths)
    warn: Callable[[str], None] = logging.getLogger(__name__).warning
    faults: Counter[str] = field(default_factory=Counter)
    """Episodes of each fault, and groups that were dropped: "dropped groups" had too few valid episodes, "groups
    without signal" one reward for all of them; "idle groups" had that too and were trained on all the same, for the
    algorithm drops none. Each also "in a row", and the latter two ", longest row"."""

    def __post_init__(self, ready: Sequence[ReadyGroup]) -> None:
        self._schedule: Schedule[int] = Schedule(
            batch_size=self.batch_size, staleness=self.staleness, step=self.steps_done
        )
        self._version = self.steps_done  # optimizer steps behind the weights that every engine has
        self._ready: dict[int, Group] = {}
        for each in ready:
            self._schedule.restore(each.number, each.deadline)
            self._ready[each.number] = each.group
        self._settled = 0  # groups that came back
        self._news = asyncio.Event()
        self._window: deque[list[int]] = deque()  # numbers of the groups of its next steps
        self._is_held = False
        self._pull: asyncio.Task[dict[str, float]] | None = None

    @property
    def is_synced(self) -> bool:
        """Whether the weights of the last step were published."""
        return self.steps_done % self.sync_interval == 0 or self.steps_done == self.steps

    @property
    def is_in_window(self) -> bool:
        """Whether groups were taken that no step has trained on: `ready_groups` does not have them."""
        return bool(self._window)

    @property
    def ready_groups(self) -> list[ReadyGroup]:
        """Groups that no step has taken yet, for a checkpoint: call it between two windows."""
        if self.is_in_window:
            raise InvariantError(f"after step {self.steps_done}, groups are taken that no step has trained on")
        return [ReadyGroup(number, self._schedule.deadline(number), group) for number, group in self._ready.items()]

    async def run(self) -> None:
        """Train until `steps` optimizer steps are done.

        Raises:
            ServiceError: when no groups come, or only broken ones.
        """
        if self.steps_done >= self.steps:
            return  # before any group is admitted
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                rollouts = tasks.create_task(self.rollouts())
                tasks.create_task(self.training()).add_done_callback(lambda _: rollouts.cancel())
        except* Exception as errors:
            raise first_error(errors) from None

    async def rollouts(self) -> None:
        """Begin a group whenever the schedule has room for one; it comes back on its own time."""
        prompts = self.ledger.prompts()
        async with asyncio.TaskGroup() as groups:
            while True:
                await self._when(lambda: (not self._is_held and self._schedule.admits(self._version)) or None)
                if self.run_wave is not None:
                    await self._wave(prompts, self.run_wave)
                else:
                    groups.create_task(self._rollout(self._admit(prompts)))

    async def training(self) -> None:
        """Train on the groups that the schedule takes, and put the new weights into the engines."""
        for step in range(self.steps_done + 1, self.steps + 1):
            started = time.perf_counter()
            is_first = not self._window
            if is_first:
                self._window.extend([await self._take() for _ in range(self._window_size())])
            rollout_done = time.perf_counter()
            metrics = await self._begin_window() if is_first else {}
            numbers = self._window.popleft()
            groups = [self._ready.pop(number) for number in numbers]
            metrics |= await self.train_step(groups)
            for number, group in zip(numbers, groups, strict=True):
                self.ledger.train(number)
                self.lengths.trained(group)
            train_done = time.perf_counter()
            evaluate = self.evaluate if self.is_evaluated(step) else None
            # A wave's batches are the same on each run only while nobody else asks the engine for anything.
            self._is_held = self.run_wave is not None and evaluate is not None
            if step % self.sync_interval == 0 or step == self.steps:
                metrics |= await self._sync(step)
            seconds = {
                "seconds/rollout": rollout_done - started,
                "seconds/train": train_done - rollout_done,
                "seconds/sync_stall": time.perf_counter() - train_done,
                "seconds/step": time.perf_counter() - started,
            }
            self.on_step(step, groups, metrics | self._counts() | seconds)
            self.steps_done = step
            if evaluate is not None:
                await self._evaluate(step, evaluate)
            if self.after_step is not None:
                await self.after_step(step)

    def _window_size(self) -> int:
        """Steps whose groups are taken before the next one of them: those until the next update of the engines."""
        if self.begin_window is None:
            return 1
        return min(self.sync_interval - self.steps_done % self.sync_interval, self.steps - self.steps_done)

    async def _begin_window(self) -> dict[str, float]:
        if self.begin_window is None:
            return {}
        return await self.begin_window([[self._ready[number] for number in numbers] for numbers in self._window])

    async def _sync(self, step: int) -> dict[str, float]:
        """Publish the weights of a step; the engines take them over while the next steps go on, where they may.

        Returns:
            The metrics of this update and, where it was in the background, of the pull before it.
        """
        metrics = await self._pulled()
        metrics |= await self.publish_weights(step)
        self._pull = self._tasks.create_task(self._take_over(step))
        if self.staleness == 0 or step == self.steps:  # the next step, or the evaluation, needs the engines to have it
            metrics |= await self._pulled()
        return metrics

    async def _evaluate(self, step: int, evaluate: Callable[[int], Awaitable[None]]) -> None:
        """Evaluate the weights of a step. Rollouts go on beside it, where they may; no other weights can come."""
        if self._pull is not None:
            await self._pull  # its metrics are for the next update
        await evaluate(step)
        self._is_held = False
        self._news.set()

    async def _pulled(self) -> dict[str, float]:
        """Wait for the pull in flight, if there is one."""
        pull, self._pull = self._pull, None
        return await pull if pull is not None else {}

    async def _take_over(self, step: int) -> dict[str, float]:
        metrics = await self.pull_weights(step)
        self._version = step
        self._news.set()
        return metrics

    def _admit(self, prompts: Iterator[int]) -> int:
        number = next(prompts)
        self._schedule.admit(number, self._version)
        return number

    async def _rollout(self, number: int) -> None:
        try:
            self._settle(number, await self.run_group(self.task(number), number))
        except ReplicaDied as error:  # in every try: the next one might end the last process as well
            self._drop(number, "its processes died")
            self._count_dropped(f"the last error: {error}")
        self._news.set()

    async def _wave(self, prompts: Iterator[int], run_wave: RunWave) -> None:
        """Begin all groups that may begin, and wait for all of them."""
        numbers = []
        while self._schedule.admits(self._version):
            numbers.append(self._admit(prompts))
        groups = await run_wave([(self.task(number), number) for number in numbers])
        for number, group in zip(numbers, groups, strict=True):
            self._settle(number, group)
        self._news.set()

    def _settle(self, number: int, group: Group) -> None:
        """Decide whether a group will be trained on."""
        self._settled += 1
        self.faults.update(e.outcome.value for e in group.faults)
        if not self.keeps(group):
            self._drop(number, "too few valid episodes")
            self._count_dropped(_why_dropped(group))
        elif self.objective.needs_signal and not self.objective.has_signal(group):
            self._drop(number, "no signal")
            self._count_flat(group)
        else:
            self.faults["dropped groups in a row"] = self.faults["groups without signal in a row"] = 0
            self._count_idle(group)
            self._ready[number] = group
            self.lengths.finished(group)
            self.ledger.finish(number)
            self._schedule.finish(number)

    def _drop(self, number: int, reason: str) -> None:
        self.ledger.drop(number, reason)
        self._schedule.drop(number)

    async def _take(self) -> list[int]:
        """Wait for the groups of the next step; returns their numbers, in the order of their admission."""

        async def place() -> object:
            return self._settled, await self.progress()

        def stuck() -> str:
            return f"no step, and nothing has moved for {self.patience:g} s: {self._waiting_for()}"

        async with while_moving(place, seconds=self.patience, stuck=stuck):
            taken = await self._when(self._schedule.take)
        self._news.set()  # there may be room for others
        return sorted(taken)

    async def _when(self, found: Callable[[], T | None]) -> T:
        """Wait until `found` finds something; it is asked again when a group is back or the engines have weights."""
        while (result := found()) is None:
            self._news.clear()
            await self._news.wait()
        return result

    def _waiting_for(self) -> str:
        """What keeps the next step from being taken."""
        row = self.faults["groups without signal in a row"]
        if row:
            return f"the last {row} groups were dropped, each with one reward for all its episodes"
        schedule, due = self._schedule, self._schedule.overdue()
        said = f"{schedule.ready} of {schedule.open} open groups are finished, {self.batch_size} make a step"
        if due:
            said += f", and it has to wait for group{'s' * (len(due) > 1)} {', '.join(map(str, due))}"
        return f"{said}; the environments or the policy hang"

    @property
    def rows_without_signal(self) -> dict[str, int]:
        """For the summary: groups with one reward for all their episodes, trained on or dropped, and the longest rows
        of them."""
        return {
            "groups_idle": self.faults["idle groups"],
            "groups_idle_longest_row": self.faults["idle groups, longest row"],
            "groups_without_signal": self.faults["groups without signal"],
            "groups_without_signal_longest_row": self.faults["groups without signal, longest row"],
        }

    def _counts(self) -> dict[str, float]:
        return {
            "episodes_timed_out": float(self.faults[Outcome.TIMEOUT.value]),
            "groups_dropped": float(self.faults["dropped groups"]),
            "groups_without_signal": float(self.faults["groups without signal"]),
            "groups_open": float(self._schedule.open),
            "length_bias": self.lengths.bias,
        }

    def _count_dropped(self, reason: str) -> None:
        """Count a group with too few valid episodes, or none."""
        self.faults["dropped groups"] += 1
        self.faults["dropped groups in a row"] += 1
        if self.faults["dropped groups in a row"] >= MAX_FAULTS_IN_A_ROW:
            raise ServiceError(f"{MAX_FAULTS_IN_A_ROW} groups in a row had too few valid episodes; {reason}")

    def _count_idle(self, group: Group) -> None:
        """Count groups that are trained on although all episodes have one reward, and so change nothing."""
        objective = self.objective
        if not objective.needs_siblings or objective.reward.user_reward is not None or len(set(group.rewards)) > 1:
            self.faults["idle groups in a row"] = 0
            return
        row = self._count("idle groups")
        if row:
            self.warn(
                f"{row} groups in a row had one reward for all their episodes, {group.rewards[0]:g} in the last: "
                "nothing is learned from their rewards, for the tasks are too easy or too hard for this policy; how "
                "many more there are, the summary says"
            )

    def _count_flat(self, group: Group) -> None:
        """Count a group whose valid episodes all have one reward; it is no fault, so it ends a row of faults."""
        self.faults["dropped groups in a row"] = 0
        warned, error = self._count("groups without signal"), self.objective.signal_error
        row, reward = self.faults["groups without signal in a row"], self.objective.reward.of_task(group.valid[0])
        said = f"{row} groups in a row were dropped, each with one reward for all its episodes, {reward:g} in the last"
        if error and row >= error:
            raise ServiceError(f"{said}: the tasks are too easy or too hard, or dynamic sampling must be off")
        if warned:
            end = f"the run ends at {error} in a row; " if error else ""
            self.warn(f"{said}; {end}how many more there are, the summary says")

    def _count(self, kind: str) -> int:
        """Count a group of a kind that is warned of once in a run; returns the length of the row to warn of, or 0.

        The longest row is kept with the counts, in checkpoints too: a run that goes on does not warn again.
        """
        self.faults[kind] += 1
        self.faults[f"{kind} in a row"] += 1
        row, longest = self.faults[f"{kind} in a row"], self.faults[f"{kind}, longest row"]
        self.faults[f"{kind}, longest row"] = max(row, longest)
        return row if row == self.objective.signal_warning > longest else 0


def _why_dropped(group: Group) -> str:
    """How the episodes of a group without a reward ended, and what one of them says."""
    outcomes = Counter(episode.outcome.value for episode in group.faults)
    ended = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common())
    error = next((e.error for e in group.faults if e.error), "none was given")
    return f"outcomes without a reward in the last one: {ended or 'none'}; the last error: {error}"
