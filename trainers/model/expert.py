"""Plays an environment's expert with ample limits, to find out what limits of an episode it needs."""

from __future__ import annotations

from collections.abc import Iterable

from agents.scripted import scripted_agent
from forge_env.core.episode import Episode
from forge_env.core.types import EpisodeLimits, Task
from forge_env.evaluation.evaluate import is_success
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode

AMPLE = EpisodeLimits(max_turns=64)


async def solved_by_expert(factory: EnvFactory, tasks: Iterable[Task]) -> list[Episode]:
    """The episodes of these tasks that the expert solves; `factory` is open."""
    agent = scripted_agent(factory.name)
    episodes = [
        await run_episode(factory, agent, task, seed=number, episode_id=f"expert/{number}", limits=AMPLE)
        for number, task in enumerate(tasks)
    ]
    return [episode for episode in episodes if is_success(episode)]


def too_few_turns(env: str, turns: int, limit: int) -> str:
    """The sentence about a limit of turns that ends the expert's episodes."""
    return f"the expert of {env} needs {turns} turns, and --env.max_turns is {limit}: set it to {turns} or more"
