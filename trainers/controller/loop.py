"""The loop: two coroutines, rollouts and training, and the bound on staleness between them.

The loop decides when a group runs, when a step trains, and when the engines get its weights; `Rollouts`, `Learner` and
`WeightSync` do it. trainers/controller/schedule.py says which group may begin and which groups a step takes, so that no
group trains weights that are more than S steps newer than those that sampled it. trainers/controller/ledger.py keeps
account of every prompt.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from forge_env.core.episode import Group
from forge_env.core.errors import ForgeError, InvariantError, ReplicaDied, ServiceError, UserError, first_error
from forge_env.core.faults import why_faulty
from forge_env.evaluation.evaluate import is_success
from forge_env.utils.progress import fail_if_stalled
from forge_env.utils.threads import invoke
from trainers.controller.drop_counts import fate_of
from trainers.controller.loop_state import LoopSettings, LoopState, ReadyGroup
from trainers.controller.schedule import Schedule
from trainers.objective.advantages import has_signal
from trainers.run.controls import Controls

if TYPE_CHECKING:  # tests run the loop without actors
    from forge_env.rollout.rollout import GroupSpec
    from trainers.controller.learner import Learner
    from trainers.run.rollouts import Rollouts
    from trainers.run.weight_sync import WeightSync

T = TypeVar("T")


class Loop:
    """One run of a policy-gradient algorithm.

    Args:
        learner: chooses the tasks, takes optimizer steps on groups, and records them.
        state: from a checkpoint; the loop owns it from now on.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        learner: Learner,
        weights: WeightSync,
        settings: LoopSettings,
        state: LoopState | None = None,
        controls: Controls | None = None,
    ) -> None:
        state = state or LoopState()
        self.rollouts, self.learner, self.weights = rollouts, learner, weights
        self.settings = settings
        self.steps_done, self.ledger = state.steps_done, state.ledger
        self.drops = state.drops
        self._schedule: Schedule[int] = Schedule(
            batch_size=settings.batch_size, staleness=settings.staleness, step=state.steps_done
        )
        self._ready: dict[int, Group] = {}
        for ready in state.ready:
            self._schedule.restore(ready.number, ready.deadline)
            self._ready[ready.number] = ready.group
        self._old_groups = frozenset(self._ready)
        """Groups of the checkpoint: the user's reward function is asked about their episodes anew."""
        self._groups_back = 0  # groups that came back
        self.controls = controls or Controls()
        self._news = self.controls.news
        self._window: deque[list[int]] = deque()  # numbers of the groups of its next steps
        self._is_held = False
        self._is_stopping = False
        self.ended_by: ForgeError | None = None
        """Why the run ends before its last step, between two steps: `state` can be kept, unless it `is_in_window`."""
        self._evaluation: asyncio.Timeout | None = None
        self._pull: asyncio.Task[dict[str, float]] | None = None
        self._proof: asyncio.Task[dict[str, float]] | None = None

    @property
    def is_in_window(self) -> bool:
        """Whether groups were taken that no step has trained on: `state` does not have them."""
        return bool(self._window)

    @property
    def state(self) -> LoopState:
        """The state for a checkpoint; read it between two windows only."""
        if self.is_in_window:
            raise InvariantError(f"after step {self.steps_done}, groups are taken that no step has trained on")
        deadline = self._schedule.deadline
        return LoopState(
            steps_done=self.steps_done,
            ledger=self.ledger,
            ready=[ReadyGroup(number, deadline(number), group) for number, group in self._ready.items()],
            drops=self.drops,
        )

    async def run(self) -> None:
        """Train until `settings.steps` optimizer steps are done, or until `stop`."""
        if self.steps_done >= self.settings.steps:
            return  # before any group is admitted
        self.controls.steps, self.controls.queue = self.settings.steps, self._queue
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                sampling = tasks.create_task(self.sampling())
                tasks.create_task(self.training()).add_done_callback(lambda _: sampling.cancel())
        except* Exception as errors:
            raise first_error(errors) from None
        finally:
            self.controls.queue = None
        if self.ended_by is not None and self.steps_done < self.settings.steps:
            raise self.ended_by

    def stop(self) -> None:
        """Let `run` return after the optimizer step in progress, or after the last step of its window. A checkpoint
        can then keep `state`."""
        self._is_stopping = True
        self._news.set()
        if self._evaluation is not None:
            self._evaluation.reschedule(asyncio.get_running_loop().time())

    async def sampling(self) -> None:
        """Begin a group whenever the schedule admits one; groups finish in any order."""
        prompts = self.ledger.prompts()
        async with asyncio.TaskGroup() as groups:
            while True:
                await self._when(lambda: self._may_begin() or None)
                if self.settings.in_waves:
                    await self._wave(prompts)
                else:
                    groups.create_task(self._rollout(self._admit(prompts)))

    async def training(self) -> None:
        """Train on the groups that the schedule takes, and put the new weights into the engines."""
        while self.steps_done < self.settings.steps:
            step, is_first = self.steps_done + 1, not self._window
            if is_first:
                # Take over the number of steps that the controls say, before any group of the next window is taken.
                if self.controls.steps != self.settings.steps:
                    await self.learner.end_at(self.controls.steps)
                    self.settings = replace(self.settings, steps=self.controls.steps)
                self.controls.steps_begun = self.steps_done + self._window_size()
            else:
                await self._hold()
            start_time = time.perf_counter()
            if is_first:
                for _ in range(self._window_size()):
                    if not (numbers := await self._take(may_stop=not self._window)):
                        return
                    self._window.append(numbers)
            rollout_done = time.perf_counter()
            metrics: dict[str, float] = {}
            if is_first and self.settings.in_windows:
                window = [[self._ready[number] for number in numbers] for numbers in self._window]
                metrics = await self.learner.begin_window(window)
            numbers = self._window.popleft()
            groups = [self._ready.pop(number) for number in numbers]
            pairs = zip(numbers, groups, strict=True)
            groups = [await self._judge(group) if number in self._old_groups else group for number, group in pairs]
            try:
                metrics |= await self.learner.train_step(step, groups)
            except UserError as error:  # of a function of the user's, before the optimizer stepped
                for number in numbers:
                    self.ledger.again(number)
                self._end(error)
                return
            for number in numbers:
                self.ledger.train(number)
            train_done = time.perf_counter()
            is_evaluated = self.learner.is_evaluated(step)
            # The batches of a wave repeat bit by bit only while the engine has no other requests.
            self._is_held = self.settings.in_waves and is_evaluated
            if step % self.settings.sync_interval == 0 or step == self.settings.steps:
                metrics |= await self._sync(step)
            seconds = {
                "seconds/rollout": rollout_done - start_time,
                "seconds/train": train_done - rollout_done,
                "seconds/sync_stall": time.perf_counter() - train_done,
                "seconds/step": time.perf_counter() - start_time,
            }
            self.learner.record_step(step, groups, metrics | self._counts | seconds)
            self.steps_done = step
            most = self.settings.signal_error if step < self.settings.steps else 0  # a run that is done says it itself
            self.drops.train(metrics, has_gradient=self.learner.has_gradient(metrics), most=most)
            if is_evaluated and not self._is_stopping:
                await self._evaluate(step)
            if self._is_stopping and not self.is_in_window:
                return
            await self.learner.after_step(step, None if self.is_in_window else self.state)

    def _may_begin(self) -> bool:
        is_held = self._is_held or self.controls.is_paused
        return not is_held and self._schedule.admits(self.weights.engine_steps)

    @property
    def _holds(self) -> bool:
        return self.controls.holds and not self._is_stopping

    async def _hold(self) -> None:
        """Wait as long as the controls hold the next step, and evaluate if they say so."""
        while self._holds:
            if self.controls.evaluates:
                self.controls.evaluates = False
                if self._pull is not None:
                    await self._pull  # its metrics are for the next update
                await self._evaluate(self.weights.engine_steps)
            else:
                self._news.clear()
                await self._news.wait()

    def _queue(self) -> dict[str, Any]:
        """The groups under way and the prompts, for people."""
        schedule = self._schedule
        return {
            "open": schedule.open,
            "ready": schedule.ready,
            "groups_per_step": self.settings.batch_size,
            "most_behind": self.settings.staleness,
            "engine_steps": self.weights.engine_steps,
            "steps_done": self.steps_done,
            "waited_for": sorted(schedule.overdue()),
            "prompts": self.ledger.counts,
        }

    @property
    def _counts(self) -> dict[str, float]:
        return self.drops.metrics | {"groups_open": float(self._schedule.open)} | self.ledger.metrics

    def _window_size(self) -> int:
        """Number of steps that take their groups together: until the next update of the engines."""
        if not self.settings.in_windows:
            return 1
        interval = self.settings.sync_interval
        return min(interval - self.steps_done % interval, self.settings.steps - self.steps_done)

    async def _sync(self, step: int) -> dict[str, float]:
        """Publish the weights of a step; the engines pull them while the next steps go on, if staleness allows it.

        Returns:
            The metrics of this update and, if the last one was in the background, of its pull and its proof.
        """
        metrics = await self._await_pull() | await self._await_proof()
        metrics |= await self.weights.publish(step)
        self._pull = self._tasks.create_task(self._take_over())
        is_last = step == self.settings.steps
        # Without staleness the next step needs the engines to have the new weights; so does the last evaluation.
        if self.settings.staleness == 0 or is_last:
            metrics |= await self._await_pull()
        if self.settings.in_waves or is_last:  # a wave has the engine alone, or it would not repeat
            metrics |= await self._await_proof()
        return metrics

    async def _evaluate(self, step: int) -> None:
        """Evaluate the weights of a step. Rollouts go on meanwhile, if settings allow it; the weights do not change."""
        if self._pull is not None:
            await self._pull  # its metrics are for the next update
            if self._is_stopping:
                return
        try:
            async with asyncio.timeout(None) as self._evaluation:
                with self._ending():
                    await self.learner.evaluate(step)
        except TimeoutError:
            if not self._is_stopping:
                raise
        self._evaluation = None
        self._is_held = False
        self._news.set()

    async def _await_pull(self) -> dict[str, float]:
        pull, self._pull = self._pull, None
        return await pull if pull is not None else {}

    async def _await_proof(self) -> dict[str, float]:
        """Wait for the proof of the last pull, if it is in flight. The next pull would make the engines answer
        otherwise."""
        proof, self._proof = self._proof, None
        return await proof if proof is not None else {}

    async def _take_over(self) -> dict[str, float]:
        metrics = await self.weights.pull()
        self._proof = self._tasks.create_task(self.weights.prove())
        self._news.set()
        return metrics

    def _spec(self, number: int) -> GroupSpec:
        return self.learner.spec(self.ledger.prompt(number))

    def _admit(self, prompts: Iterator[int]) -> int:
        number = next(prompts)
        self._schedule.admit(number, self.weights.engine_steps)
        return number

    def _end(self, error: ForgeError) -> None:
        """Let the step in progress be finished, and `run` raise the error."""
        self.ended_by = self.ended_by or error
        self.stop()

    async def _rollout(self, number: int) -> None:
        try:
            group = await self._judge(await self.rollouts.run_group(self._spec(number)))
            self._finish(number, group, await self._task_rewards(group))
        except ReplicaDied as error:  # in every try: the next one might end the last process as well
            env = self._drop(number, "its processes died")
            with self._ending():
                self.drops.drop_faulty(env, f"the last error: {error}")
        self._news.set()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """The run ends, and what it has is kept, if the block finds that no group will come that can be trained on."""
        try:
            yield
        except (ServiceError, UserError) as error:
            self._end(error)

    async def _judge(self, group: Group) -> Group:
        """The group without the episodes that the user's reward function fails for. It runs in a thread."""
        if self.learner.objective.reward.user_reward is None:
            return group
        new_group: Group = await invoke(self.learner.objective.with_verdicts, group)
        errors = [
            episode.error
            for episode, before in zip(new_group.episodes, group.episodes, strict=True)
            if episode is not before
        ]
        if errors and not self.drops.left_out:
            self.learner.left_out(errors[0])
        with self._ending():
            self.drops.judge(len(group.valid), errors)
        return new_group

    async def _wave(self, prompts: Iterator[int]) -> None:
        numbers = []
        while self._schedule.admits(self.weights.engine_steps):
            numbers.append(self._admit(prompts))
        wave_groups = await self.rollouts.run_wave([self._spec(number) for number in numbers])
        groups = [await self._judge(group) for group in wave_groups]
        rewards = [await self._task_rewards(group) for group in groups]
        for result in zip(numbers, groups, rewards, strict=True):
            self._finish(*result)
        self._news.set()

    async def _task_rewards(self, group: Group) -> list[float]:
        """The rewards for dynamic sampling, which judges a group; empty without it. User code runs in a thread."""
        objective = self.learner.objective
        if not objective.needs_signal or not self.learner.keeps(group):
            return []
        if objective.reward.user_reward is None:
            return objective.task_rewards(group)
        rewards: list[float] = await invoke(objective.task_rewards, group)
        return rewards

    def _finish(self, number: int, group: Group, task_rewards: Sequence[float]) -> None:
        self._groups_back += 1
        self.drops.add_outcomes(group)
        self.ledger.observe(number, sum(map(is_success, group.valid)), len(group.valid))
        if not self.learner.keeps(group):
            env = self._drop(number, "too few valid episodes")
            with self._ending():
                self.drops.drop_faulty(env, why_faulty(group))
        elif self.learner.objective.needs_signal and not has_signal(task_rewards):
            env = self._drop(number, "no signal")
            self.learner.note_drop(group, task_rewards)
            most = self.settings.signal_error * self.settings.batch_size
            with self._ending():
                self.drops.drop_flat(env, fate_of(group), task_rewards[0], most=most)
        else:
            self.drops.keep(self.ledger.prompt(number).env, has_signal=self.learner.objective.needs_signal)
            self._ready[number] = group
            self.ledger.finish(number, sum(episode.num_sampled for episode in group.valid))
            self._schedule.finish(number)

    def _drop(self, number: int, reason: str) -> str:
        """Give a group up; returns the label of its environment."""
        env = self.ledger.prompt(number).env
        self.ledger.drop(number, reason)
        self._schedule.drop(number)
        return env

    async def _take(self, *, may_stop: bool = False) -> list[int]:
        """Wait for the groups of the next step; returns their numbers, in the order of their admission.

        None are returned if no more will come, or, with `may_stop`, if the loop is stopped before the step has them.
        """

        async def progress() -> object:
            return self._groups_back, await self.rollouts.progress()

        def stuck() -> str:
            return f"no step, and nothing has moved for {self.settings.patience:g} s: {self._waiting_for()}"

        def is_over() -> bool:
            return bool(self.ended_by or (may_stop and self._is_stopping))

        numbers: list[int] = []
        while not numbers and not is_over():
            await self._hold()
            async with fail_if_stalled(progress, seconds=self.settings.patience, sentence=stuck):
                numbers = await self._when(lambda: [] if is_over() or self._holds else self._schedule.take())
        self._news.set()  # there may be room for others
        return sorted(numbers)

    async def _when(self, ask: Callable[[], T | None]) -> T:
        """Wait until `ask` returns a value; it is called again when a group returns or the engines have new weights."""
        while (result := ask()) is None:
            self._news.clear()
            await self._news.wait()
        return result

    def _waiting_for(self) -> str:
        """Why the next step cannot begin, as the end of a sentence."""
        if self.learner.objective.needs_signal and (row := self.drops.silent_in_a_row):
            return f"the last {row} groups were dropped, each with one reward for all its episodes"
        schedule, due = self._schedule, self._schedule.overdue()
        text = f"{schedule.ready} of {schedule.open} open groups are finished, {self.settings.batch_size} make a step"
        if due:
            text += f", and it has to wait for group{'s' * (len(due) > 1)} {', '.join(map(str, due))}"
        return f"{text}; the environments or the policy hang"
