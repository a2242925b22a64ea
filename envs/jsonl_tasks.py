"""Tasks from a file of JSON lines, for environments whose rows have no format of a benchmark."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from envs.task_splits import bucket
from forge_env.core.errors import UserError, nearest
from forge_env.core.types import Task

_SPLITS = ("train", "test", "all")


def file_tasks(data: str, split: str, *, count: int, seed: int, make: Callable[[Any, str], Task]) -> list[Task]:
    """Return tasks from a file.

    Args:
        data: the file. With {split} in its name it is one file for each split; otherwise one prompt in ten is "test",
            the others are "train", and "all" is the whole file.
        make: makes a task of a row and its place, such as "tasks.jsonl:3"; raises UserError for an invalid row. The
            first of equal tasks counts.

    Raises:
        UserError: for a file that cannot be read, a line that is no task, and more tasks than there are.
    """
    path = Path(data.replace("{split}", split)).expanduser()
    is_divided = "{split}" not in data
    if is_divided and split not in _SPLITS:
        raise UserError(f"there is no split {split!r} of {path}. {nearest(split, _SPLITS)}")
    tasks_by_id: dict[str, Task] = {}
    for number, row in _rows(path):
        task = make(row, f"{path}:{number}")
        is_test = bucket(json.dumps(task.prompt), 10) == 0
        if not is_divided or split == "all" or is_test == (split == "test"):
            tasks_by_id.setdefault(task.id, task)
    if len(tasks_by_id) < count:
        hint = ', or for the split "all"' if is_divided and split != "all" else ""
        raise UserError(f"{count} {split} tasks were asked for, {path} has {len(tasks_by_id)}: ask for fewer{hint}")
    return random.Random(seed).sample(list(tasks_by_id.values()), count)


def all_file_tasks(data: str, *, make: Callable[[Any, str], Task]) -> list[Task]:
    """Return every task of a file, in its order; the first of equal tasks counts. Arguments and errors as above."""
    path = Path(data).expanduser()
    tasks_by_id: dict[str, Task] = {}
    for number, row in _rows(path):
        task = make(row, f"{path}:{number}")
        tasks_by_id.setdefault(task.id, task)
    return list(tasks_by_id.values())


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8-sig") as file:  # some editors begin a file with a byte order mark
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, json.loads(line)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the data file {path} cannot be read: {_reason(error)}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}:{number} is no JSON: a data file has one JSON object in each line") from None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is no text in UTF-8"
