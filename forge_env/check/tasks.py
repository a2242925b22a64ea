"""The check of an environment's tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from forge_env.check.subject import Failed, Subject
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.rollout.task_list import TASKS_SECONDS, BadTasks


async def tasks(subject: Subject) -> str:
    """Both splits, as many tasks as asked for, the same for the same seed, distinct and disjoint, and plain data."""
    drawn = {split: _drawn(subject, split) for split in ("train", "test")}
    subject.tasks = drawn["train"]
    for split, items in drawn.items():
        again = subject.factory.tasks(split, count=len(items), seed=subject.seed)
        if [content(task) for task in again] != [content(task) for task in items]:
            raise Failed(
                f"tasks({split!r}, seed={subject.seed}) returned other tasks when called again: draw from "
                "random.Random(seed), and keep no state between calls"
            )
    _disjoint(drawn["train"], drawn["test"])
    return f"{len(drawn['train'])} train and {len(drawn['test'])} test tasks, disjoint and the same for the same seed"


def content(task: Task) -> list[Any]:
    """All that makes a task, to be compared."""
    return [task.id, list(task.prompt), task.target, dict(task.metadata)]


def _drawn(subject: Subject, split: str) -> Sequence[Task]:
    """As many tasks of a split as there are, `subject.count` at most."""
    count = subject.count
    seconds = min(TASKS_SECONDS, max(subject.until - time.monotonic(), 1.0))
    while True:
        try:
            items = subject.factory.tasks(split, count=count, seed=subject.seed, seconds=seconds)
            break
        except BadTasks as error:
            raise Failed(str(error)) from error
        except UserError as error:  # a small split may say that it holds fewer
            if count == 1:
                raise Failed(f"tasks({split!r}, count=1) is refused: {error}") from None
            count //= 2
    if len(items) != count:
        raise Failed(
            f"tasks({split!r}, count={count}) returned {len(items)} tasks: return `count` of them, or raise UserError"
        )
    for task in items:
        if not task.prompt:
            raise Failed(f"the task {task.id!r} of the split {split!r}: in its prompt, there is no message")
    return items


def _disjoint(train: Sequence[Task], test: Sequence[Task]) -> None:
    if both := {task.id for task in train} & {task.id for task in test}:
        raise Failed(f"train and test share {len(both)} tasks, {min(both)!r} among them: split by content")
    prompts = {_prompt(task) for task in train}
    for task in test:
        if _prompt(task) in prompts:
            raise Failed(
                f"the test task {task.id!r} has the prompt of a train task: ids that differ do not make it another task"
            )


def _prompt(task: Task) -> str:
    return json.dumps(task.prompt, sort_keys=True)
