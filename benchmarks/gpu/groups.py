"""Groups of siblings through a PolicyActor and EnvActors, as many at once as asked for: what rollouts are timed by."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agents.generator.policy import ActorPolicy, PolicyActor
from agents.generator.start import EngineSettings
from agents.generator.stats import EngineStats
from envs.actors.env import EnvActor
from forge_env.core.episode import Episode
from forge_env.core.faults import SHRINK
from forge_env.core.protocols import NextTurn
from forge_env.core.types import EpisodeLimits, Task
from forge_env.runtime.launcher import Launcher

LEAST, MOST, SIBLINGS = 32, 224, 8
"""Sampled tokens of a turn, and episodes of a group."""


def turn_of_any_length(rng: random.Random) -> dict[str, Any]:
    """An environment's info: the next turn has LEAST to MOST sampled tokens.

    Turns differ in every run, and equal ones would all end in one step, and begin in one.
    """
    return {"next": NextTurn(max_tokens=rng.randint(LEAST, MOST))}


@dataclass(frozen=True, kw_only=True)
class Played:
    """What some groups came to."""

    episodes: list[Episode]
    seconds: float
    engine_ready: float
    """Seconds of the engine's start, which are no part of `seconds`."""
    engine: EngineStats
    """What the engine did meanwhile."""

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(episode.num_sampled for episode in self.episodes)


async def play_groups(
    model: Path,
    settings: EngineSettings,
    *,
    env: str,
    options: dict[str, Any],
    limits: EpisodeLimits,
    task: Callable[[int], Task],
    groups: int,
    at_once: int,
    env_processes: int,
    warm_up: int = 1,
    with_gpus: bool = True,
) -> Played:
    """Play `groups` groups, `at_once` at a time, after `warm_up` others by which everything has run once.

    Args:
        model: a Hugging Face folder.
        settings: of the engine.
        env: "module:Class".
        options: of the environment.
        limits: of an episode.
        task: of a group, by its number; the numbers of the warm-up are negative.
        groups: that are timed.
        at_once: groups in flight.
        env_processes: of the environments.
        warm_up: groups before the clock starts.
        with_gpus: whether the engine has a GPU.
    """
    async with Launcher():
        started = time.perf_counter()
        policy = await PolicyActor.options(with_gpus=with_gpus, start_seconds=600).as_service(
            model=str(model), settings=settings
        )
        ready = time.perf_counter() - started
        asked = ActorPolicy(policy.client, admission=settings.admission)
        envs = await EnvActor.options(num_replicas=env_processes).as_service(
            env=env,
            options=options,
            agents={"policy": ("agents.token_agent:TokenAgent", {"model": str(model), "policy": asked})},
            limits=limits,
            on_fault=SHRINK,
        )
        limit = asyncio.Semaphore(at_once)

        async def group(number: int) -> Any:
            async with limit:
                return await envs.route(
                    EnvActor.run_group,
                    task(number),
                    agent="policy",
                    count=SIBLINGS,
                    seed=1000 * number,
                    group_id=str(number),
                    env_options={},
                )

        await asyncio.gather(*(group(-1 - i) for i in range(warm_up)))
        (before,) = await policy.fanout(PolicyActor.use)
        started = time.perf_counter()
        played = await asyncio.gather(*(group(i) for i in range(groups)))
        seconds = time.perf_counter() - started
        (after,) = await policy.fanout(PolicyActor.use)
    episodes = [episode for each in played for episode in each.episodes]
    assert all(episode.outcome.is_valid for episode in episodes), episodes[0].error
    did = {name: value - getattr(before, name) for name, value in asdict(after).items()}
    return Played(episodes=episodes, seconds=seconds, engine_ready=ready, engine=EngineStats(**did))


def engine_figures(stats: EngineStats, seconds: float) -> dict[str, Any]:
    """Steps of an engine within some seconds: how long they are, and how full."""
    return {
        "steps": stats.steps,
        "seconds_per_step": stats.step_seconds / stats.steps,
        "requests_at_once": stats.request_steps / stats.steps,
        "share_in_steps": stats.step_seconds / seconds,
    }
