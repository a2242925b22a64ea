"""The tasks of external: numbers, rows of a file, or those of another environment."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from envs.external.rooms import has_workspaces, task_factory
from envs.jsonl_tasks import file_tasks
from envs.task_kinds import kind_of_row
from forge_env.core.errors import UserError
from forge_env.core.types import Message, Task

_PROMPTS, _TARGETS = ("prompt", "question", "messages"), ("target", "answer")


def make_tasks(split: str, *, count: int, seed: int, tasks: str, data: str, image: str = "") -> Sequence[Task]:
    """Return the tasks that these options of external ask for.

    Raises:
        UserError: for data that `tasks` has no use for, a file that cannot be read, a row that is no task, and more
            tasks than there are.
    """
    if tasks and data and not has_workspaces(tasks):
        raise UserError(
            f"tasks is {tasks!r} and data is {data!r}: the tasks come from one of them, leave the other out"
        )
    if tasks:
        return task_factory(tasks, data=data, image=image).tasks(split, count=count, seed=seed)
    if data:
        return file_tasks(data, split, count=count, seed=seed, make=_task)
    rng = random.Random(f"{split}/{seed}")
    numbers = rng.sample(range(10 * count + 1000), count)
    return [_numbered(split, number) for number in numbers]


def _numbered(split: str, number: int) -> Task:
    """A task for a program that brings its own tasks: it may choose one by the number."""
    prompt: Message = {"role": "user", "content": f"Task {number} of the split {split}."}
    return Task(prompt=(prompt,), metadata={"split": split, "number": number})


def _task(row: Any, where: str) -> Task:
    columns: Mapping[str, Any] = row if isinstance(row, dict) else {}
    prompt = _prompt(next((columns[name] for name in _PROMPTS if columns.get(name)), None))
    metadata = columns.get("metadata") or {}
    if prompt is None or not isinstance(metadata, dict):
        raise UserError(
            f'{where} is no task: a line is an object like {{"prompt": "What is 2 + 2?", "target": "4"}}, whose prompt '
            'is a text or a list of messages, and whose "metadata", if it has any, is an object'
        )
    target = next((columns[name] for name in _TARGETS if name in columns), None)
    return Task(prompt=prompt, target=target, metadata=metadata, kind=kind_of_row(columns))


def _prompt(value: Any) -> tuple[Message, ...] | None:
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if isinstance(value, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in value
    ):
        return tuple({"role": m["role"], "content": m["content"]} for m in value)
    return None
