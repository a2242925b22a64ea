"""The check of an environment's tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forge_env.check.shapes import wrong_with_json, wrong_with_messages
from forge_env.check.subject import Failed, Subject
from forge_env.errors import UserError
from forge_env.types import Task


async def tasks(subject: Subject) -> str:
    """Both splits, as many tasks as asked for, the same for the same seed, distinct and disjoint, and plain data."""
    drawn = {split: _drawn(subject, split) for split in ("train", "test")}
    subject.tasks = drawn["train"]
    for split, items in drawn.items():
        _examine(split, items)
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
    while True:
        try:
            items = subject.factory.tasks(split, count=count, seed=subject.seed)
            break
        except NotImplementedError as error:
            raise Failed(f"{error}") from None
        except UserError as error:  # a small split may say that it holds fewer
            if count == 1:
                raise Failed(f"tasks({split!r}, count=1) is refused: {error}") from None
            count //= 2
        except Exception as error:
            raise Failed(f"tasks({split!r}, count={count}) raised {type(error).__name__}: {error}") from error
    if not isinstance(items, Sequence) or not all(isinstance(item, Task) for item in items):
        raise Failed(f"tasks({split!r}) returned a {type(items).__name__}; return a list of forge_env.Task")
    if len(items) != count:
        raise Failed(
            f"tasks({split!r}, count={count}) returned {len(items)} tasks: return `count` of them, or raise UserError"
        )
    return items


def _examine(split: str, items: Sequence[Task]) -> None:
    for task in items:
        where = f"the task {task.id!r} of the split {split!r}"
        if not isinstance(task.id, str):
            raise Failed(f"{where} has an id that is no text; leave it out for a hash of the content")
        if problem := wrong_with_messages(task.prompt) or ("" if task.prompt else "there is no message"):
            raise Failed(f"{where}: in its prompt, {problem}")
        for name, value in (("target", task.target), ("metadata", dict(task.metadata))):
            if problem := wrong_with_json(value):
                raise Failed(f"{where}: its {name} {problem}")
    ids = [task.id for task in items]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise Failed(f"tasks({split!r}) holds the id {twice[0]!r} more than once: draw without repetition")


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
