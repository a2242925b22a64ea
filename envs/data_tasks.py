"""Tasks from rows of data: which rows are used, how they are split, and what is said of the others."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from envs.task_splits import bucket, check_split
from forge_env.core.errors import TooFewTasks, UserError
from forge_env.core.plain_value import task_problem
from forge_env.core.types import Message, Task
from forge_env.data.row import DataTasks, RowCount
from forge_env.data.rows import BadRow, Data, NumberText, Row, open_data, shuffled, text_problem

TEST_SHARE = 10
"""One task in this number is a test task."""
SPLITS = ("train", "test", "all")
_BUFFER = 1000
"""Rows that a stream is shuffled among."""


def data_tasks(
    source: str,
    split: str,
    *,
    count: int | None,
    seed: int | None,
    make: Callable[[Mapping[str, Any]], Task],
    streaming: bool = False,
    exact: bool = False,
) -> DataTasks:
    """Return `count` tasks of a file or of a dataset of the hub; the same seed gives the same ones in the same order.

    All rows are read, so that which of them are left out does not depend on the seed; a row that is equal to an earlier
    one is not a task of its own. One task in ten, by its prompt, is "test", the others are "train", and "all" is every
    task. Of two tasks or more one at least is "test". A file with `{split}` in its name, and a dataset of the hub, are
    divided already.

    Args:
        count: how many; None is all of them.
        seed: which ones, and in which order; None is the order of the file.
        make: makes a task of a row's values; raises BadRow for a row that is left out.
        streaming: read no more rows than are needed; they are shuffled within a buffer.
    """
    data = open_data(source, split=split, streaming=streaming, exact=exact)
    if not data.is_divided:
        check_split(split, SPLITS, name=data.name)
    order = None if streaming else seed  # a stream is shuffled already
    selection = _Wanted(split="all" if data.is_divided else split, count=count, seed=order)
    rows: Iterable[Row] = data
    if streaming:
        rows = shuffled(data, random.Random(seed), buffer=_BUFFER)
    row_count = RowCount(source=data.name)
    for number, task in enumerate(_tasks(rows, row_count, make)):
        selection.offer(number, task)
        if streaming and selection.is_full:
            row_count.is_complete = False
            break
    if not streaming:
        selection.fill_both_splits()
    tasks = DataTasks(selection.tasks(), row_count)
    row_count.tasks = selection.sizes if not data.is_divided else {split: selection.total}
    _check(tasks, data, split, count)
    return tasks


def message_prompt(value: Any) -> tuple[Message, ...]:
    """Return the prompt of a value that is a text, or a list of messages, which may be written as JSON."""
    if isinstance(value, str) and re.match(r'\s*\[\s*\{\s*"(role|content)"', value):  # as in a column of a CSV file
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, str) and not isinstance(value, NumberText) and value.strip():
        return ({"role": "user", "content": value},)
    is_list = isinstance(value, list) and bool(value)
    if is_list and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in value):
        return tuple({"role": m["role"], "content": m["content"]} for m in value)
    raise BadRow(f"its prompt is neither text nor a list of messages with role and content: {value!r:.60}")


def _tasks(rows: Iterable[Row], row_count: RowCount, make: Callable[[Mapping[str, Any]], Task]) -> Iterator[Task]:
    """Make tasks of rows, equal ones once; count the rows, and those that are not a task."""
    ids: set[str] = set()
    for row in rows:
        row_count.rows += 1
        try:
            task = make(row.read())
            if problem := task_problem(task):
                raise BadRow(problem)
            if problem := text_problem([task.prompt, task.target, dict(task.metadata)]):
                raise BadRow(f"it {problem}")
        except BadRow as bad:
            row_count.left_out.add(row.where, str(bad))
            continue
        if task.id in ids:
            row_count.repeated += 1
            continue
        ids.add(task.id)
        yield task


def _check(tasks: DataTasks, data: Data, split: str, count: int | None) -> None:
    row_count, left_out = tasks.rows, tasks.rows.left_out
    name = data.file or data.name
    if not row_count.rows:
        raise UserError(f"{name} is empty: it holds no row")
    if left_out.total == row_count.rows:
        raise UserError(f"no row of {name} can be used: {left_out}")
    also = f"; {left_out}" if left_out.total else ""
    if not tasks:
        there = ", ".join(f"{number:,} {part}" for part, number in row_count.tasks.items()) or "none"
        raise UserError(f"{name} has no {split} task: it has {there}{also}")
    if count is not None and len(tasks) < count:
        hint = ', or for the split "all"' if not data.is_divided and split != "all" else ""
        raise TooFewTasks(
            f"{count:,} {split} tasks were asked for, {name} has {len(tasks):,}: ask for fewer{hint}{also}", len(tasks)
        )


@dataclass(slots=True, kw_only=True)
class _Wanted:
    """Keeps the tasks of a split that a seed draws, without holding all that there are."""

    split: str
    count: int | None
    seed: int | None
    total: int = 0
    sizes: dict[str, int] = field(default_factory=lambda: {"train": 0, "test": 0})
    _best: list[tuple[int, int, Task]] = field(default_factory=list)
    """Each with its place in the order."""
    _nearest: dict[str, tuple[int, Task]] = field(default_factory=dict)
    """Of each split the task that is first to go to the other one, should that be empty."""

    @property
    def is_full(self) -> bool:
        return self.count is not None and len(self._best) >= self.count

    def offer(self, number: int, task: Task) -> None:
        key = json.dumps(task.prompt)
        part = "test" if bucket(key, TEST_SHARE) == 0 else "train"
        self.total += 1
        self.sizes[part] += 1
        place = bucket(key, 2**32)
        if part not in self._nearest or place < self._nearest[part][0]:
            self._nearest[part] = (place, task)
        if self.split in (part, "all"):
            self._best.append((self._draw(number), number, task))
            if self.count is not None and len(self._best) > 2 * self.count + 100:
                self._best.sort()
                del self._best[self.count + 1 :]  # one more: a task may go to the other split

    def fill_both_splits(self) -> None:
        """Move a task to a split that has none, if there are two tasks or more."""
        empty = next((part for part, size in self.sizes.items() if not size), "")
        if not empty or self.total < 2:
            return
        [full] = self.sizes.keys() - {empty}
        task = self._nearest[full][1]
        self.sizes = {**self.sizes, full: self.total - 1, empty: 1}
        if self.split == empty:
            self._best = [(0, 0, task)]
        elif self.split == full:
            self._best = [item for item in self._best if item[2].id != task.id]

    def tasks(self) -> list[Task]:
        return [task for *_, task in sorted(self._best, key=lambda item: item[:2])][: self.count]

    def _draw(self, number: int) -> int:
        if self.seed is None:
            return number
        return int.from_bytes(hashlib.blake2b(f"{self.seed}/{number}".encode(), digest_size=8).digest(), "little")
