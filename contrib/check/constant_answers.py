"""The check of constant answers: an answer that does not depend on the question earns no success."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contrib.check.context import CheckContext, CheckFailed
from contrib.check.strategies import actions_in_order, final_answer
from forge_env.core.reward_value import reaches
from forge_env.core.types import Task
from forge_env.evaluation.evaluate import is_success

CONSTANTS = ("0", "1", "-1", "nan", "inf", "true", "false", "yes", "no", "None", "A", "[]", "{}", "()", "E/E", "?")
MAX_MEAN_REWARD = 0.5
"""A constant with this mean reward or more fails the check, even if it never succeeds."""


async def constant_answers(context: CheckContext) -> str:
    """No constant succeeds on a task that has another answer, nor has a high mean reward on such tasks.

    Where no right answer is known, as in a game, a constant may be a move that wins; all of them are none.
    """
    tasks = [task for task in context.tasks if right_answers(context, task)]
    for constant in CONSTANTS:
        rewards = []
        for task in tasks:
            if any(is_same(constant, answer) for answer in right_answers(context, task)):
                continue
            episode = await context.episode(task, actions_in_order(final_answer(constant)))
            context.episodes_of[f"the constant {constant!r}"].append(episode)
            if not episode.outcome.is_valid:  # another check reports it
                continue
            rewards.append(episode.reward or 0.0)
            if is_success(episode):
                raise CheckFailed(
                    f"the constant {constant!r} scores {rewards[-1]:g} on the task {task.id!r}, whose answer it is "
                    "not: let the reward compare the answer with the target"
                )
        if len(rewards) > 1 and reaches(sum(rewards) / len(rewards), MAX_MEAN_REWARD):
            raise CheckFailed(
                f"the constant {constant!r} scores {sum(rewards) / len(rewards):g} on average over {len(rewards)} "
                "tasks whose answer it is not: give partial credit only for what has to be worked out"
            )
    for task in context.tasks:
        if task not in tasks and await _all_succeed(context, task):
            raise CheckFailed(
                f"each of {len(CONSTANTS)} constants succeeds on the task {task.id!r}: let the reward depend on the "
                "answer"
            )
    unknown = len(context.tasks) - len(tasks)
    others = f", and not all of them on {unknown} tasks whose right answer is not known" if unknown else ""
    return f"none of {len(CONSTANTS)} constants scores on {len(tasks)} tasks{others}"


async def _all_succeed(context: CheckContext, task: Task) -> bool:
    for constant in CONSTANTS:
        if not is_success(await context.episode(task, actions_in_order(final_answer(constant)))):
            return False
    return True


def right_answers(context: CheckContext, task: Task) -> list[str]:
    """Return the answers that may be right: texts and numbers in the task's target, and the expert's final answer."""
    gold = context.gold.get(task.id)
    return [*_leaves(task.target), *([] if gold is None else [gold, *gold.split()])]


def is_same(one: str, other: str) -> bool:
    """Whether two answers are equal except for case, white space and the way a number is written."""
    a, b = one.strip().casefold(), other.strip().casefold()
    if a == b:
        return True
    try:
        return float(a) == float(b)
    except (ValueError, OverflowError):
        return False


def _leaves(target: Any) -> Iterator[str]:
    if isinstance(target, Mapping):
        for value in target.values():
            yield from _leaves(value)
    elif isinstance(target, Sequence) and not isinstance(target, str):
        yield str(target)
        for value in target:
            yield from _leaves(value)
    elif target is not None:
        yield str(target)
