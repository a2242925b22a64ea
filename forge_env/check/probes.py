"""The check of constants: what a model can write without reading the question earns no success."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forge_env.check.moves import plays, says
from forge_env.check.subject import Failed, Subject
from forge_env.core.types import Task
from forge_env.evaluation.evaluate import is_success

CONSTANTS = ("0", "1", "-1", "nan", "inf", "true", "false", "yes", "no", "None", "A", "[]", "{}", "()", "E/E", "?")
PAYS = 0.5
"""The mean reward from which a constant pays without reading, where it is never a success."""


async def constants(subject: Subject) -> str:
    """No constant succeeds on a task whose answer it is not, or earns half of the marks wherever it is written."""
    for constant in CONSTANTS:
        earned = []
        for task in subject.tasks:
            if any(is_same(constant, answer) for answer in answers(subject, task)):
                continue
            episode = await subject.episode(task, plays(says(constant)))
            if not episode.outcome.is_valid:  # the finding of another check
                continue
            earned.append(episode.reward or 0.0)
            if is_success(episode):
                raise Failed(
                    f"the constant {constant!r} scores {earned[-1]:g} on the task {task.id!r}, whose answer it is not: "
                    "let the reward compare the answer with the target"
                )
        if len(earned) > 1 and sum(earned) / len(earned) >= PAYS:
            raise Failed(
                f"the constant {constant!r} scores {sum(earned) / len(earned):g} on average over {len(earned)} tasks "
                "whose answer it is not: give partial credit for what has to be worked out only"
            )
    return f"none of {len(CONSTANTS)} constants scores on {len(subject.tasks)} tasks"


def answers(subject: Subject, task: Task) -> list[str]:
    """What may be right: the texts and numbers in a task's target, and the expert's last words."""
    gold = subject.gold.get(task.id)
    return [*_leaves(task.target), *([] if gold is None else [gold, *gold.split()])]


def is_same(one: str, other: str) -> bool:
    """Whether two answers say the same but for case, white space and the way a number is written."""
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
