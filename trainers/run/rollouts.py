"""Rollouts: groups of episodes, run in the processes of the environments and sampled by the engines."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from agents.generator.policy import PolicyActor
from envs.actors.env import EnvActor
from forge_env.core.episode import Group
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.faults import MAX_FAULTS_IN_A_ROW, why_faulty
from forge_env.core.types import EpisodeLimits, Task
from forge_env.evaluation.evaluate import Evaluation, evaluate
from forge_env.rollout.rollout import GroupSpec
from forge_env.runtime.service import Service
from forge_env.utils.progress import fail_if_stalled
from trainers.run.run_record import RunRecord
from trainers.run.weight_sync import WeightSync
from trainers.setup.run_plan import RunPlan


@dataclass(slots=True)
class Flight:
    call: asyncio.Task[Group]
    since: float
    """`time.monotonic()` at its beginning."""
    version: int
    """Of the weights in the engines at that time."""
    is_requeued: bool = False


@dataclass(kw_only=True)
class Rollouts:
    """Runs groups, see `GroupSpec`."""

    plan: RunPlan
    envs: Mapping[str, Service[EnvActor]]
    """The processes of each environment, by its label."""
    engines: Service[PolicyActor]
    weights: WeightSync
    record: RunRecord
    tokens_generated: int = 0
    limits: EpisodeLimits | None = None
    """Groups that begin from now on have them; None are the limits of the start."""
    in_flight: dict[str, Flight] = field(default_factory=dict, init=False)
    """The groups that are played, by id, without the groups of waves."""
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def spec(
        self,
        phase: str,
        index: int,
        task: Task,
        *,
        agent: str,
        env: str = "",
        count: int = 1,
        env_options: Mapping[str, Any] | None = None,
        is_measured: bool = False,
    ) -> GroupSpec:
        """The group PHASE/INDEX, or PHASE/ENV/INDEX. Its seed depends on the run's seed and this name only."""
        group_id = "/".join(filter(None, (phase, env, str(index))))
        return GroupSpec(
            task=task,
            agent=agent,
            env=env,
            count=count,
            seed=random.Random(f"{self.plan.config.training.seed}/{group_id}").randrange(2**31),
            group_id=group_id,
            env_options=env_options or {},
            limits=self.limits,
            is_measured=is_measured,
        )

    @property
    def services(self) -> dict[str, Service[EnvActor]]:
        """The processes of each environment, by their names for people."""
        return {f"environments{f' of {label}' if label else ''}": service for label, service in self.envs.items()}

    async def run_group(self, spec: GroupSpec) -> Group:
        """Run one group. It has no deadline: the caller waits within `moving`, or in the loop."""
        with self._span([spec]):
            while (group := await self._play(spec)) is None:
                pass
        self._count([group])
        return group

    async def _play(self, spec: GroupSpec) -> Group | None:
        """Play a group; None if it is to be played again."""
        call = await self._send(lambda: self.envs[spec.env].route(EnvActor.run_group, spec))
        flight = self.in_flight[spec.group_id] = Flight(call, time.monotonic(), self.weights.in_engines)
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not flight.is_requeued or (task is not None and task.cancelling()):
                raise
            return None
        finally:
            del self.in_flight[spec.group_id]

    def requeue(self, group_id: str) -> None:
        """Give up what was played of a group, and play it again from its first prompt; its prompt stays open."""
        flight = self.in_flight.get(group_id)
        if flight is None or not flight.call.cancel():
            raise UserError(f"no group {group_id!r} is played now; forge-env live RUN lists those that are")
        flight.is_requeued = True

    async def run_wave(self, specs: Sequence[GroupSpec]) -> list[Group]:
        """Run groups in lockstep, in one process; of several environments one after another, so that runs repeat."""
        groups: dict[str, Group] = {}
        for env in dict.fromkeys(spec.env for spec in specs):
            wave = [spec for spec in specs if spec.env == env]
            with self._span(wave):
                groups |= {group.id: group for group in await self.envs[env].route(EnvActor.run_wave, wave)}
        self._count([*groups.values()])
        return [groups[spec.group_id] for spec in specs]

    async def measure(
        self, specs: Sequence[GroupSpec], on_done: Callable[[int], None] = lambda count: None
    ) -> Evaluation:
        """Run groups, few at once, until all are done; `on_done` is called with the number of finished ones."""
        at_once, phase, in_a_row = self.plan.episodes_at_once, _phase(specs[0]), Counter[str]()

        def check(group: Group, spec: GroupSpec) -> Group:
            in_a_row[spec.env] += 1
            if any(episode.outcome.is_attempt for episode in group.episodes):
                in_a_row[spec.env] = 0
            if (row := in_a_row[spec.env]) == MAX_FAULTS_IN_A_ROW:
                raise ServiceError(f"{_phase(spec)}: {row} groups in a row had faults only; {why_faulty(group)}")
            return group

        async def run(task: Task, index: int) -> Group:
            return check(await self.run_group(specs[index]), specs[index])

        async with self.moving(phase):
            if not self.plan.config.training.deterministic:
                tasks = [spec.task for spec in specs]
                return await evaluate(run, tasks, concurrency=at_once, on_done=on_done)
            groups: list[Group] = []
            for first in range(0, len(specs), at_once):
                wave = specs[first : first + at_once]
                groups += map(check, await self.run_wave(wave), wave)
                on_done(len(groups))
        return Evaluation(episodes=tuple(episode for group in groups for episode in group.episodes))

    async def offers_tools(self, spec: GroupSpec) -> bool:
        """Whether an instance of the environment for this group has tools, and can switch them off."""
        async with self.moving(_phase(spec)):
            return await self.envs[spec.env].route(EnvActor.offers_tools, spec)

    def moving(self, phase: str) -> AbstractAsyncContextManager[None]:
        """Enter it to wait for groups: it raises when there is no progress for `RunPlan.patience` seconds."""
        seconds = self.plan.patience
        stuck = f"{phase}: nothing has moved for {seconds:g} s; the environments or the policy hang"
        return fail_if_stalled(lambda: self.progress(), seconds=seconds, sentence=lambda: stuck)

    async def progress(self) -> object:
        """A value that changes whenever engines or environments make progress.

        A replica that is being started counts as progress: its start has a deadline of its own.
        """
        envs = self.envs.values()
        if self.engines.is_starting or any(service.is_starting for service in envs):
            return object()
        with suppress(ServiceError):  # a replica that does not answer makes no progress; its ping handles it
            uses = await self.engines.deadline(10.0).fanout(PolicyActor.use)
            episode_counts = [await service.deadline(10.0).fanout(EnvActor.num_episodes) for service in envs]
            deaths = [len(service.deaths) for service in envs]
            return len(self.engines.deaths), deaths, [use.steps for use in uses], episode_counts
        return None

    async def _send(self, call: Callable[[], Coroutine[Any, Any, Group]]) -> asyncio.Task[Group]:
        """Send the message of a call. Many groups that begin at once send one in each turn of the event loop."""
        async with self._sending:
            task = asyncio.create_task(call())
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                task.cancel()
                raise
        return task

    def _count(self, groups: Sequence[Group]) -> None:
        self.tokens_generated += sum(episode.num_sampled for group in groups for episode in group.episodes)

    def _span(self, specs: Sequence[GroupSpec]) -> AbstractContextManager[None]:
        first, last = (spec.group_id.rpartition("/")[2] for spec in (specs[0], specs[-1]))
        name = f"group {first}" if len(specs) == 1 else f"groups {first} to {last}"
        track = f"{_phase(specs[0]).partition('/')[0]} rollouts"
        return self.record.span(track, name, version=self.weights.in_engines)


def _phase(spec: GroupSpec) -> str:
    return spec.group_id.rpartition("/")[0]
