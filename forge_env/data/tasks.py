"""DataTasks: tasks that were made of rows of data, and what became of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forge_env.core.types import Task
from forge_env.data.row import LeftOut


@dataclass(slots=True)
class RowCount:
    """What the rows of one source came to."""

    source: str
    """Name of the file, or id of the dataset."""
    rows: int = 0
    left_out: LeftOut = field(default_factory=LeftOut)
    repeated: int = 0
    """Rows that are equal to an earlier one."""
    tasks: Mapping[str, int] = field(default_factory=dict)
    """Tasks by split, as far as they were read."""
    is_complete: bool = True
    """False for a stream that was read only as far as needed."""

    def __str__(self) -> str:
        rows = f"{self.rows:,} row{'s' * (self.rows != 1)}" + (" read" if not self.is_complete else "")
        repeats = f", {self.repeated:,} repeated" if self.repeated else ""
        left_out = f", {self.left_out}" if self.left_out.total else ""
        return f"{self.source}: {rows}{repeats}{left_out}"

    @property
    def shown_tasks(self) -> str:
        """The tasks of each split, for people."""
        return ", ".join(f"{number:,} {split}" for split, number in self.tasks.items()) or "none"

    def num_tasks(self, split: str) -> int:
        """The tasks of a split; "all" is every task."""
        return self.tasks.get(split, sum(self.tasks.values()) if split == "all" else 0)

    def record(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "rows": self.rows,
            "repeated": self.repeated,
            "left_out": self.left_out.record(),
            "tasks": dict(self.tasks),
            "complete": self.is_complete,
        }


class DataTasks(list[Task]):
    """A list of tasks that says what became of the rows they were made of."""

    def __init__(self, tasks: Iterable[Task], rows: RowCount) -> None:
        super().__init__(tasks)
        self.rows = rows
