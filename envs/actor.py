"""EnvActor: runs groups of episodes on its own event loop, in its own process, tokenising and parsing there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from forge_env.core.episode import Group
from forge_env.core.errors import first_error
from forge_env.core.faults import FaultPolicy
from forge_env.core.protocols import Agent
from forge_env.core.types import EpisodeLimits, Task
from forge_env.registry.registry import load
from forge_env.rollout.factory import make
from forge_env.rollout.lockstep import Wave
from forge_env.rollout.rollout import run_group
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint, long_endpoint
from forge_env.utils.gc_settings import relax_garbage_collector

AgentSpec = tuple[str, Mapping[str, Any]]
"""("module:Class", arguments): environments import nothing of agents."""

WaveMember = tuple[Task, int, str]
"""(task, seed, id) of a group."""


class EnvActor(ForgeActor):
    """Runs episodes of one environment with any of the agents that it was given by name."""

    idempotent = frozenset({"run_group", "run_wave"})  # what a process that died has left of a group is lost with it

    def __init__(
        self,
        *,
        env: str,
        options: Mapping[str, Any],
        agents: Mapping[str, AgentSpec],
        limits: EpisodeLimits,
        on_fault: FaultPolicy,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self._env = env
        self._options = options
        self._specs = agents
        self._limits = limits
        self._on_fault = on_fault
        self._agents: dict[str, Agent] = {}
        self._stack = AsyncExitStack()
        self._ended = 0

    async def on_start(self) -> None:
        relax_garbage_collector()
        self._factory = await self._stack.enter_async_context(make(self._env, **self._options))
        self._agents = {name: load(target)(**kwargs) for name, (target, kwargs) in self._specs.items()}

    async def on_finish(self) -> None:
        await self._stack.aclose()

    @long_endpoint
    async def run_group(
        self,
        task: Task,
        *,
        agent: str,
        count: int,
        seed: int,
        group_id: str,
        env_options: Mapping[str, Any],
        is_measured: bool = False,
    ) -> Group:
        """Run `count` sibling episodes of a task; many calls run at once.

        Where they measure something, a TIMEOUT is a result like others, and not run again.
        """
        return await self._run_group(task, agent, count, seed, group_id, env_options, is_measured)

    @long_endpoint
    async def run_wave(
        self,
        members: Sequence[WaveMember],
        *,
        agent: str,
        count: int,
        env_options: Mapping[str, Any],
        is_measured: bool = False,
    ) -> list[Group]:
        """Run groups of `count` sibling episodes, all of them in lockstep where the agent's policy can, see Wave."""
        async with Wave(len(members) * count) as wave:
            try:
                async with asyncio.TaskGroup() as running:
                    groups = [
                        running.create_task(
                            self._run_group(task, agent, count, seed, name, env_options, is_measured, wave.episode)
                        )
                        for task, seed, name in members
                    ]
            except* Exception as errors:
                raise first_error(errors) from None
        return [group.result() for group in groups]

    @concurrent_endpoint
    async def ended(self) -> int:
        """Episodes that have ended here so far, in groups that are not back yet among them."""
        return self._ended

    async def _run_group(
        self,
        task: Task,
        agent: str,
        count: int,
        seed: int,
        group_id: str,
        env_options: Mapping[str, Any],
        is_measured: bool,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Group:
        @contextmanager
        def counted() -> Iterator[None]:
            with around():
                yield
            self._ended += 1

        return await run_group(
            self._factory,
            self._agents[agent],
            task,
            count=count,
            seed=seed,
            group_id=group_id,
            limits=self._limits,
            on_fault=replace(self._on_fault, refills_timeouts=not is_measured),
            env_options=env_options,
            around=counted,
        )
