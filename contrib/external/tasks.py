"""The tasks of external: numbers, rows of a file, or another environment's tasks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from contrib.external.rooms import Options, has_workspaces, task_factory
from envs.data_tasks import data_tasks, message_prompt
from envs.task_splits import kind_of_row
from forge_env.core.errors import UserError
from forge_env.core.types import Message, Task
from forge_env.data.rows import BadRow

_PROMPTS, _TARGETS = ("prompt", "question", "messages"), ("target", "answer")


def make_tasks(
    split: str, *, count: int, seed: int, tasks: str, data: str, image: str = "", task_options: Options = ""
) -> Sequence[Task]:
    if tasks and data and not has_workspaces(tasks):
        raise UserError(
            f"tasks is {tasks!r} and data is {data!r}: the tasks come from one of them, leave the other out"
        )
    if tasks:
        factory = task_factory(tasks, data=data, image=image, task_options=task_options)
        return factory.tasks(split, count=count, seed=seed)
    if data:
        return data_tasks(data, split, count=count, seed=seed, make=_task)
    rng = random.Random(f"{split}/{seed}")
    numbers = rng.sample(range(10 * count + 1000), count)
    return [_task_of_number(split, number) for number in numbers]


def _task_of_number(split: str, number: int) -> Task:
    """A task for a program that brings its own tasks: it may choose one by the number."""
    prompt: Message = {"role": "user", "content": f"Task {number} of the split {split}."}
    return Task(prompt=(prompt,), metadata={"split": split, "number": number})


def _task(values: Mapping[str, Any]) -> Task:
    prompt = next((values[name] for name in _PROMPTS if values.get(name)), None)
    metadata = values.get("metadata") or {}
    if prompt is None or not isinstance(metadata, dict):
        raise BadRow(
            'it is no task: a row has columns like {"prompt": "What is 2 + 2?", "target": "4"}, whose prompt is a text '
            'or a list of messages, and whose "metadata", if it has any, is an object'
        )
    target = next((values[name] for name in _TARGETS if name in values), None)
    return Task(prompt=message_prompt(prompt), target=target, metadata=metadata, kind=kind_of_row(values))
