"""Rollouts: groups of episodes, run in the processes of the environments and sampled by the engines."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from envs.actors.env import EnvActor, GroupSpec
from forge_env.core.episode import Group
from forge_env.core.types import Task
from forge_env.evaluation.evaluate import Evaluation, evaluate
from trainers.metrics.report import Report
from trainers.run.services import Services
from trainers.setup.deadlines import while_moving
from trainers.setup.run_plan import RunPlan


class Rollouts:
    """Runs groups. The seed of a group depends on the run's seed, the phase and its index only."""

    def __init__(self, plan: RunPlan, report: Report, services: Services) -> None:
        self._plan, self._report, self._services = plan, report, services
        self.tokens_generated = 0
        self._sending = asyncio.Lock()

    async def run_group(
        self,
        task: Task,
        index: int,
        *,
        phase: str,
        agent: str,
        count: int,
        is_measured: bool = False,
        **env_options: Any,
    ) -> Group:
        """Run one group. It has no deadline: the caller waits within `moving`, or in the loop."""
        call = functools.partial(
            self._services.envs.route,
            EnvActor.run_group,
            task,
            agent=agent,
            count=count,
            seed=self._seed(phase, index),
            group_id=f"{phase}/{index}",
            env_options=env_options,
            is_measured=is_measured,
        )
        with self._span(phase, f"group {index}"):
            group = await (await self._sent(call))
        self.tokens_generated += sum(episode.num_sampled for episode in group.episodes)
        return group

    async def _sent(self, call: Callable[[], Coroutine[Any, Any, Group]]) -> asyncio.Task[Group]:
        """Send the message of a call. Many groups that begin at once send one in each turn of the event loop."""
        async with self._sending:
            task = asyncio.create_task(call())
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                task.cancel()
                raise
        return task

    async def run_wave(
        self,
        numbered: Sequence[tuple[Task, int]],
        *,
        phase: str,
        agent: str,
        count: int,
        is_measured: bool = False,
        **env_options: Any,
    ) -> list[Group]:
        """Run groups of (task, index) in lockstep; each has the seed that it has in `run_group`."""
        specs = [
            GroupSpec(
                task=task,
                agent=agent,
                count=count,
                seed=self._seed(phase, index),
                group_id=f"{phase}/{index}",
                env_options=env_options,
                is_measured=is_measured,
            )
            for task, index in numbered
        ]
        call = self._services.envs.route(EnvActor.run_wave, specs)
        with self._span(phase, f"groups {numbered[0][1]} to {numbered[-1][1]}"):
            groups = await call
        self.tokens_generated += sum(episode.num_sampled for group in groups for episode in group.episodes)
        return groups

    async def measure(
        self,
        tasks: Sequence[Task],
        *,
        phase: str,
        agent: str = "policy",
        count: int = 1,
        on_done: Callable[[int], None] = lambda done: None,
        **options: Any,
    ) -> Evaluation:
        """Episodes of an agent over the policy, `count` per task, with the seeds of the phase."""
        async with self.moving(phase):
            return await self._measure(tasks, phase=phase, agent=agent, count=count, on_done=on_done, **options)

    def moving(self, phase: str) -> AbstractAsyncContextManager[None]:
        """Enter it to wait for groups: it raises when there is no progress for `RunPlan.patience` seconds."""
        seconds = self._plan.patience
        stuck = f"{phase}: nothing has moved for {seconds:g} s; the environments or the policy hang"
        return while_moving(lambda: self._services.progress(), seconds=seconds, stuck=lambda: stuck)

    async def _measure(
        self,
        tasks: Sequence[Task],
        *,
        phase: str,
        agent: str,
        count: int,
        on_done: Callable[[int], None],
        **options: Any,
    ) -> Evaluation:
        at_once = self._plan.episodes_at_once
        options["is_measured"] = True
        if not self._plan.training.deterministic:
            run_group = functools.partial(self.run_group, phase=phase, agent=agent, count=count, **options)
            return await evaluate(run_group, tasks, concurrency=at_once, on_done=on_done)
        groups: list[Group] = []
        for first in range(0, len(tasks), at_once):
            wave = [(tasks[i], i) for i in range(first, min(first + at_once, len(tasks)))]
            groups += await self.run_wave(wave, phase=phase, agent=agent, count=count, **options)
            on_done(len(groups))
        return Evaluation(episodes=tuple(episode for group in groups for episode in group.episodes))

    def _span(self, phase: str, name: str) -> AbstractContextManager[None]:
        track = f"{phase.partition('/')[0]} rollouts"
        return self._report.timeline.span(track, name, version=self._services.weights.in_engines)

    def _seed(self, phase: str, index: int) -> int:
        return random.Random(f"{self._plan.training.seed}/{phase}/{index}").randrange(2**31)
