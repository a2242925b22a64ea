"""The one rollout loop: an agent acts in an environment, turn by turn, and leaves an Episode.

This is the only place where environments and agents meet. A bad rollout is data: what breaks underneath an episode
becomes its outcome, counted by reason. A bug in our own code still raises.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from forge_env.env import Env, EnvFactory, invoke
from forge_env.episode import Episode, Group, Turn
from forge_env.errors import EnvError, ForgeError, InfraError, InvariantError
from forge_env.protocols import Agent, ContextFull, Conversation
from forge_env.types import Action, EpisodeLimits, Message, Outcome, Task

T = TypeVar("T")


async def run_group(
    factory: EnvFactory,
    agent: Agent,
    task: Task,
    *,
    count: int,
    seed: int,
    group_id: str,
    limits: EpisodeLimits,
    env_name: str = "",
    env_options: Mapping[str, Any] | None = None,
) -> Group:
    """Run `count` sibling episodes of one task at once; sibling i has seed `seed + i`."""
    runs = (
        run_episode(
            factory,
            agent,
            task,
            seed=seed + i,
            episode_id=f"{group_id}/{i}",
            group_id=group_id,
            limits=limits,
            env_name=env_name,
            env_options=env_options,
        )
        for i in range(count)
    )
    return Group(task=task, episodes=tuple(await asyncio.gather(*runs)), id=group_id)


async def run_episode(
    factory: EnvFactory,
    agent: Agent,
    task: Task,
    *,
    seed: int,
    episode_id: str,
    limits: EpisodeLimits,
    group_id: str = "",
    env_name: str = "",
    env_options: Mapping[str, Any] | None = None,
) -> Episode:
    """Run one episode to its end.

    Returns:
        An Episode in every case: faults of the environment or of what lies underneath are outcomes, not exceptions.
    """
    run = _Run(
        agent,
        Conversation(
            request_id=episode_id, seed=seed, max_turn_tokens=limits.max_turn_tokens, max_tokens=limits.max_tokens
        ),
        limits,
    )
    env: Env | None = None
    outcome, error = Outcome.SCORED, ""
    try:
        env = factory.make(**(env_options or {}))
        outcome = await asyncio.wait_for(run.play(env, task, seed), limits.episode_seconds)
    except TimeoutError:
        outcome = Outcome.TRUNCATED
    except InvariantError:
        raise
    except EnvError as fault:
        outcome, error = Outcome.ENV_FAULT, str(fault)
    except InfraError as fault:
        outcome, error = Outcome.INFRA_FAULT, f"{type(fault).__name__}: {fault}"
    finally:
        if env is not None:
            await invoke(env.close)
    reward = sum(turn.reward for turn in run.conversation.turns)
    if outcome is Outcome.TRUNCATED and env is not None:
        reward += env.truncation_reward
    return Episode(
        task=task,
        turns=tuple(run.conversation.turns),
        tail=tuple(run.conversation.observation),
        outcome=outcome,
        reward=reward if outcome.is_valid else None,
        rewards=run.rewards,
        id=episode_id,
        group_id=group_id,
        env=env_name or factory.env_class.__name__,
        seed=seed,
        error=error,
        info=run.info,
    )


class _Run:
    """The moving parts of one episode."""

    def __init__(self, agent: Agent, conversation: Conversation, limits: EpisodeLimits) -> None:
        self.agent = agent
        self.conversation = conversation
        self.limits = limits
        self.rewards: dict[str, float] = {}
        self.info: dict[str, Any] = {}

    async def play(self, env: Env, task: Task, seed: int) -> Outcome:
        observation, _ = await self._env(invoke(env.reset, seed=seed, options={"task": task}))
        self.conversation.observation = tuple(observation)
        for _ in range(self.limits.max_turns):
            try:
                started = time.perf_counter()
                turn, action = await self.agent.act(self.conversation, env.tools)
            except ContextFull:
                return Outcome.TRUNCATED
            policy_seconds = time.perf_counter() - started
            outcome = await self._step(env, turn, action, policy_seconds)
            if outcome is not None:
                return outcome
        return Outcome.TRUNCATED

    async def _step(self, env: Env, turn: Turn, action: Action, policy_seconds: float) -> Outcome | None:
        started = time.perf_counter()
        # The turn is kept first: what the model said stays in the record even if the environment breaks on it.
        self._append(turn, ())
        observation, reward, terminated, truncated, info = await self._env(invoke(env.step, action))
        if not math.isfinite(reward):
            raise EnvError(f"step returned the reward {reward}; a reward is a finite number")
        seconds = {"policy": policy_seconds, "env": time.perf_counter() - started}
        self.conversation.turns[-1] = replace(turn, reward=float(reward), seconds=seconds)
        self.conversation.observation = tuple(observation)
        self.rewards.update(info.get("rewards", {}))
        if "outcome" in info:
            return Outcome(info["outcome"])
        if truncated or (terminated and action.finish_reason == "length"):
            return Outcome.TRUNCATED
        return Outcome.SCORED if terminated else None

    def _append(self, turn: Turn, observation: Sequence[Message]) -> None:
        self.conversation.turns.append(turn)
        self.conversation.observation = tuple(observation)

    async def _env(self, call: Awaitable[T]) -> T:
        """Await the environment: a deadline, and its own exceptions named as its own."""
        try:
            return await asyncio.wait_for(call, self.limits.step_seconds)
        except TimeoutError:
            raise EnvError(f"reset or step took longer than {self.limits.step_seconds:g} s") from None
        except ForgeError:
            raise
        except Exception as error:
            raise EnvError(f"{type(error).__name__}: {error}") from error
