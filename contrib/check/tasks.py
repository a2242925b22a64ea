"""The check of tasks: the splits are disjoint, and the same seed gives the same tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from contrib.check.context import CheckContext, CheckFailed
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.evaluation.profile import digest_of
from forge_env.rollout.task_list import TASKS_SECONDS, BadTasks


async def tasks(context: CheckContext) -> str:
    """Both splits return the requested number of distinct tasks, repeatably, and share none."""
    splits = {split: _draw(context, split) for split in ("train", "test")}
    context.tasks = splits["train"]
    for split, items in splits.items():
        again = context.factory.tasks(split, count=len(items), seed=context.seed)
        if [content(task) for task in again] != [content(task) for task in items]:
            raise CheckFailed(
                f"tasks({split!r}, seed={context.seed}) returned other tasks when called again: draw from "
                "random.Random(seed), and keep no state between calls"
            )
    context.are_repeatable = True
    shared = _check_disjoint(splits["train"], splits["test"])
    return (
        f"{len(splits['train'])} train and {len(splits['test'])} test tasks, disjoint and the same for the same seed"
        + (f"; {shared} test tasks have the prompt of a train task, with another target or metadata" if shared else "")
    )


def content(task: Task) -> list[Any]:
    return [task.id, list(task.prompt), task.target, dict(task.metadata), task.kind]


def _draw(context: CheckContext, split: str) -> Sequence[Task]:
    count = context.count
    seconds = min(TASKS_SECONDS, max(context.deadline - time.monotonic(), 1.0))
    while True:
        try:
            items = context.factory.tasks(split, count=count, seed=context.seed, seconds=seconds)
            break
        except BadTasks as error:
            raise CheckFailed(str(error)) from error
        except UserError as error:  # raised by a split that holds fewer tasks
            if count == 1:
                raise CheckFailed(f"tasks({split!r}, count=1) is refused: {error}") from None
            count //= 2
    if len(items) != count:
        raise CheckFailed(
            f"tasks({split!r}, count={count}) returned {len(items)} tasks: return `count` of them, or raise UserError"
        )
    for task in items:
        if not task.prompt:
            raise CheckFailed(
                f"the task {task.id!r} of the split {split!r} has an empty prompt: give it one message or more"
            )
    return items


def _check_disjoint(train: Sequence[Task], test: Sequence[Task]) -> int:
    """Check that no test task has the content of a train task; returns how many have only the prompt of one.

    A question may meet another state, such as another database, in each task: it is then in the target or the metadata.
    """
    if shared := {task.id for task in train} & {task.id for task in test}:
        raise CheckFailed(f"train and test share {len(shared)} tasks, {min(shared)!r} among them: split by content")
    contents = {digest_of(task) for task in train}
    for task in test:
        if digest_of(task) in contents:
            raise CheckFailed(
                f"the test task {task.id!r} has the prompt of a train task, with the same target and metadata: split "
                "by content, as another id does not make it another task"
            )
    prompts = {_prompt(task) for task in train}
    return sum(_prompt(task) in prompts for task in test)


def _prompt(task: Task) -> str:
    return json.dumps(task.prompt, sort_keys=True)
