"""Rewards of a group: the siblings of a task are compared, and each gets a number.

Methods of an environment with `@group_reward`, and a function of the user's own (`--group-reward`), sync or async.
Their parameters name the arguments that they get:

    episodes    list of Episode: the siblings that have a reward, in order
    answers     list of str: the last message of each
    prompt      str: the last user message of the task
    target      the task's target
    task        the Task

They return a list with one number for each sibling, a part of its reward: `Episode.rewards` has it by its name, and
`Episode.reward` is raised by it, times its weight. The verdict on success is the environment's own, on one episode. A
method is called on an instance that is never reset: it has the environment's options, and what episodes share.

A sibling without a reward is left out. If the comparison fails, all are faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, TypeVar

from forge_env.core.env import Env
from forge_env.core.episode import Episode, Group
from forge_env.core.errors import EnvError, InfraError, first_error
from forge_env.core.plain_value import own_copy, own_task
from forge_env.core.reward_value import reward_value
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.core.usage import INFO_KEY, recording
from forge_env.core.user_code import error_text, guard
from forge_env.rollout.env_calls import call_env, close_env
from forge_env.rollout.factory import EnvFactory
from forge_env.tool_env.rubric import RewardPart, prompt_of
from forge_env.utils.deadlines import Deadline
from forge_env.utils.secret_values import masked_text
from forge_env.utils.threads import call_on, invoke

T = TypeVar("T")


async def with_group_rewards(
    factory: EnvFactory, group: Group, *, limits: EpisodeLimits | None = None, env_options: Mapping[str, Any] = {}
) -> Group:
    """The group with the rewards of its comparison; the same object if nothing compares.

    Args:
        limits: `scoring_seconds` is the time limit of the whole comparison.
        env_options: options of the instance whose methods compare that differ from the factory's.
    """
    parts, valid = factory.group_rewards, group.valid
    if not parts or not valid:
        return group
    limits = limits or factory.episode_limits()
    info: dict[str, Any] = {INFO_KEY: own_copy(valid[-1].info[INFO_KEY])} if INFO_KEY in valid[-1].info else {}
    token = recording.set(info)  # what a judge uses is recorded once, in the last sibling
    env: Env | None = None
    try:
        if len(valid) == 1:
            raise EnvError(f"{parts[0].name}: no sibling with a reward is left to compare the episode with")
        if any(part.is_method for part in parts):
            env = await factory.construct(env_options, seconds=limits.step_seconds)
        values = await call_env(
            "the comparison of a group", values_of(parts, valid, env), Deadline(limits.scoring_seconds)
        )
        by_episode = zip(*values, strict=True)
        results = [_with_parts(episode, parts, its) for episode, its in zip(valid, by_episode, strict=True)]
    except (EnvError, InfraError) as fault:
        outcome, error = fault_of(fault)
        fields: dict[str, Any] = {"outcome": outcome, "error": masked_text(error), "reward": None, "success": None}
        results = [replace(episode, ended_by="", **fields) for episode in valid]
    finally:
        recording.reset(token)
        if env is not None:
            await close_env(env, limits.step_seconds)
    if info:
        results[-1] = replace(results[-1], info={**results[-1].info, **info})
    by_id = {episode.id: episode for episode in results}
    return replace(group, episodes=tuple(by_id.get(episode.id, episode) for episode in group.episodes))


async def values_of(parts: Sequence[RewardPart], episodes: Sequence[Episode], env: Env | None) -> list[list[float]]:
    """The numbers of each part, one for each episode.

    Raises:
        EnvError: a part raises, or returns another thing than one finite number for each episode.
        InfraError: a judge gives no answer.
    """
    task, values = own_task(episodes[0].task), list[list[float]]()
    arguments: dict[str, Any] = {"prompt": prompt_of(task), "target": task.target, "task": task}
    arguments["answers"] = [e.steps[-1].message["content"] if e.steps else "" for e in episodes]
    for part in parts:
        if "episodes" in part.names:  # each part has copies of its own
            arguments["episodes"] = [own_copy(e) for e in episodes]
        inputs = {name: arguments[name] for name in part.names}
        with guard(f"group reward {part.name}"):
            call = call_on(env, part.function, env, **inputs) if part.is_method else invoke(part.function, **inputs)
            result = await call
            is_list = isinstance(result, Iterable) and not isinstance(result, str | Mapping)
            numbers = list(result) if is_list else []
        if len(numbers) != len(episodes):
            raise EnvError(
                f"the group reward {part.name} returned {result!r:.80} for {len(episodes)} episodes; return a list "
                "with one number for each"
            )
        values.append([reward_value(number, f"the group reward {part.name} returned") for number in numbers])
    return values


def without_group_rewards(episode: Episode, parts: Sequence[RewardPart]) -> Episode:
    """A recorded episode as it was before its comparison."""
    there = {part.name: part.weight * episode.rewards[part.name] for part in parts if part.name in episode.rewards}
    if episode.reward is None or not there:
        return episode
    rest = {name: value for name, value in episode.rewards.items() if name not in there}
    return replace(episode, reward=episode.reward - sum(there.values()), rewards=rest)


async def pairwise(items: Sequence[T], compare: Callable[[T, T], Awaitable[float] | float]) -> list[float]:
    """One number for each item: its mean share of the points against each other one, all asked at once.

    Args:
        items: two or more, such as the answers of a group.
        compare: the points of the first item against the second one, from 0 to 1; sync or async. Each pair is asked in
            both orders, because a model that judges may prefer a place.

    Raises:
        EnvError: for a number outside of 0 and 1.
    """

    async def points(first: T, second: T) -> float:
        value = reward_value(await invoke(compare, first, second), "a comparison of two returned")
        if not 0 <= value <= 1:
            raise EnvError(f"a comparison of two returned {value:g}; return the share of the first, from 0 to 1")
        return value

    try:
        async with asyncio.TaskGroup() as tasks:
            wins = {
                (i, j): tasks.create_task(points(items[i], items[j])) for i, j in permutations(range(len(items)), 2)
            }
    except* Exception as errors:
        raise first_error(errors) from None
    shares = [
        [(wins[i, j].result() + 1 - wins[j, i].result()) / 2 for a, j in wins if a == i] for i in range(len(items))
    ]
    return [sum(of_item) / len(of_item) for of_item in shares]


def fault_of(error: EnvError | InfraError) -> tuple[Outcome, str]:
    """The outcome of an episode that an error has ended, and its text."""
    if isinstance(error, EnvError):
        return Outcome.ENV_FAULT, error_text(error)
    return Outcome.INFRA_FAULT, f"{type(error).__name__}: {error}"


def _with_parts(episode: Episode, parts: Sequence[RewardPart], values: Sequence[float]) -> Episode:
    by_part = {part.name: value for part, value in zip(parts, values, strict=True)}
    if there := episode.rewards.keys() & by_part:
        raise EnvError(f"the environment's own reward has the part {min(there)}: give the group reward another name")
    total = (episode.reward or 0.0) + sum(part.weight * by_part[part.name] for part in parts)
    reward = reward_value(total, "the reward with the parts of its group is")
    return replace(episode, reward=reward, rewards={**episode.rewards, **by_part})
