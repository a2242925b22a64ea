"""EnvActor: runs groups of episodes on its own event loop, in its own process, tokenising and parsing there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from typing import Any

from forge_env.core.episode import Episode, Group
from forge_env.core.errors import first_error
from forge_env.core.faults import FaultPolicy
from forge_env.core.protocols import Agent, Conversation
from forge_env.core.tokens import MOST_NUMBERS
from forge_env.core.types import EpisodeLimits
from forge_env.registry.registry import load
from forge_env.rollout.factory import make
from forge_env.rollout.lockstep import Wave
from forge_env.rollout.rollout import GroupSpec, offers_tools, run_group
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint, long_endpoint
from forge_env.utils.gc_settings import relax_garbage_collector
from forge_env.utils.secret_values import masked_text
from forge_env.utils.threads import invoke

AgentSpec = tuple[str, Mapping[str, Any]]
"""("module:Class", keyword arguments) of an agent: environments do not import agents."""
MOST_SHOWN, MOST_CHARACTERS = 50, 300
"""Of `EnvActor.in_flight`: episodes, and of each last message."""


class EnvActor(ForgeActor):
    """Runs episodes of one environment with any of its agents.

    Args:
        env: a registered name, or a "module:Class".
        limits: of each episode, unless its group has its own.
        on_fault: which episodes that failed are run again.
        label: names the environment in episodes, in the place of its own name.
        group_reward: target of a function of the user's own that compares siblings; "" is none.
    """

    # A group that a dead process had begun is lost with it.
    idempotent = frozenset({"run_group", "run_wave", "offers_tools"})

    def __init__(
        self,
        *,
        env: str,
        options: Mapping[str, Any],
        agents: Mapping[str, AgentSpec],
        limits: EpisodeLimits,
        on_fault: FaultPolicy,
        label: str = "",
        group_reward: str = "",
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self._env, self._label = env, label
        self._options = options
        self._specs = agents
        self._limits = limits
        self._on_fault = on_fault
        self._group_reward = group_reward
        self._agents: dict[str, Agent] = {}
        self._stack = AsyncExitStack()
        self._num_episodes = 0
        self._in_thread = asyncio.Lock()  # one thread at a time makes lines of episodes

    async def on_start(self) -> None:
        relax_garbage_collector()
        factory = make(self._env, **self._options)
        factory.add_group_reward(self._group_reward)
        self._factory = await self._stack.enter_async_context(factory)
        self._factory.name = self._label or self._factory.name
        self._agents = {name: load(target)(**kwargs) for name, (target, kwargs) in self._specs.items()}

    async def on_finish(self) -> None:
        await self._stack.aclose()

    @long_endpoint
    async def run_group(self, spec: GroupSpec) -> Group:
        return await self._run(spec)

    @long_endpoint
    async def run_wave(self, specs: Sequence[GroupSpec]) -> list[Group]:
        """Run groups, all of them in lockstep where the agent's policy can, see `Wave`."""
        async with Wave(sum(spec.count for spec in specs)) as wave:
            try:
                async with asyncio.TaskGroup() as running:
                    groups = [running.create_task(self._run(spec, wave.episode)) for spec in specs]
            except* Exception as errors:
                raise first_error(errors) from None
        return [group.result() for group in groups]

    @long_endpoint
    async def offers_tools(self, spec: GroupSpec) -> bool:
        """Whether an instance for the task of a group has tools, and can switch them off."""
        return await offers_tools(self._factory, spec.task, seed=spec.seed, env_options=spec.env_options)

    @concurrent_endpoint
    async def num_episodes(self) -> int:
        return self._num_episodes

    @concurrent_endpoint
    async def in_flight(self) -> list[dict[str, Any]]:
        """The episodes that are played here, MOST_SHOWN at most, those that wait longest first."""
        now, playing = time.monotonic(), self._factory.playing
        longest = sorted(playing, key=lambda run: run.since)[:MOST_SHOWN]
        return [
            {
                "episode": playing[run],
                "process": self.name,
                "waits_for": run.waits_for,
                "seconds": now - run.since,
                "turns": len(run.conversations.turns),
                "last": _last_message(run.conversations.current),
            }
            for run in longest
        ]

    async def _run(self, spec: GroupSpec, around: Callable[[], AbstractContextManager[object]] = nullcontext) -> Group:
        @contextmanager
        def count_episode() -> Iterator[None]:
            with around():
                yield
            self._num_episodes += 1

        agent = self._agents[spec.agent]
        group = await run_group(
            self._factory,
            agent,
            spec,
            limits=spec.limits or self._limits,
            on_fault=self._on_fault,
            around=count_episode,
        )
        await self._make_lines((*group.episodes, *group.replaced))
        return group

    async def _make_lines(self, episodes: Sequence[Episode]) -> None:
        """Make the line of each episode for the record of the run; it travels with the episode.

        Otherwise one process, the controller, would make the lines of all groups. Long ones are made in a thread, one
        at a time, because other episodes would wait. Short ones are not: a busy thread takes the interpreter from the
        event loop for 5 ms at a time, which is more than such a line takes.
        """
        for episode in episodes:
            if sum(len(turn.prompt_ids) + len(turn.token_ids) for turn in episode.turns) <= MOST_NUMBERS:
                episode.line  # noqa: B018  makes it
                await asyncio.sleep(0)
            else:
                async with self._in_thread:
                    await invoke(getattr, episode, "line")


def _last_message(conversation: Conversation) -> dict[str, str]:
    """The last message of a conversation, cut to its first characters; {} before the first one."""
    messages = conversation.observation or [turn.message for turn in conversation.turns[-1:]]
    if not messages:
        return {}
    last = messages[-1]
    parts = [last.get("content") or "", *last.get("tool_calls", ())]
    texts = [part if isinstance(part, str) else json.dumps(part, ensure_ascii=False, default=str) for part in parts]
    # A secret has to be whole to be known, so more is looked at than is shown.
    text = masked_text(" ".join(part[: 10 * MOST_CHARACTERS] for part in texts))
    return {"role": str(last.get("role", "")), "text": text[:MOST_CHARACTERS]}
