"""Row: one row of data and its place; LeftOut, the count of those that cannot be used; and the tasks made of rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from forge_env.core.errors import nearest
from forge_env.core.types import Task

_PLACES = 3
_REASONS = 5
_RECORDED = 100
"""The most places that one reason is recorded with."""


class BadRow(ValueError):
    """A row that cannot be used. The text is the reason, as a part of a sentence: "its answer is null"."""


class NumberText(str):
    """A number of a JSON file, as the digits that stand there."""

    __slots__ = ()


def text_problem(value: Any) -> str:
    """Return what keeps the texts in a value from being written: half of a surrogate pair, which JSON can spell."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which is no character"
    return ""


def field_of(values: Mapping[str, Any], name: str, *, what: str = "") -> Any:
    """Return the value of a column, or of a field inside of one: "reward_model.ground_truth".

    A column that holds an object as JSON text is read as that object.

    Args:
        name: of a column, which may have points in it; or a column and the fields in it.
        what: that the value is wanted for, for the error.
    """
    if name in values:
        return values[name]
    first, point, rest = name.partition(".")
    inner = values.get(first)
    if isinstance(inner, str) and inner.lstrip().startswith("{"):
        with suppress(ValueError):
            inner = json.loads(inner)
    if point and isinstance(inner, Mapping):
        try:
            return field_of(inner, rest)
        except BadRow as bad:
            raise BadRow(f"in its {first}, {bad}") from None
    raise BadRow(f"it has no column {name!r}{f' for the {what}' if what else ''}. {nearest(name, values)}")


@dataclass(frozen=True, slots=True)
class Row:
    where: str
    """Its place: "line 7" of JSON lines and CSV files, which count from 1 and count the header; else "row 7"."""
    values: Mapping[str, Any] | BadRow
    """Values by column, or why there are none."""

    def read(self) -> Mapping[str, Any]:
        if isinstance(self.values, BadRow):
            raise self.values
        return self.values


@dataclass(slots=True)
class LeftOut:
    """Counts rows that are not used, by reason, and names the first ones.

    >>> left_out = LeftOut()
    >>> left_out.add("line 7", "its answer is null")
    >>> str(left_out)
    '1 left out (line 7: its answer is null)'
    """

    total: int = 0
    _counts: Counter[str] = field(default_factory=Counter)
    _places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, where: str, reason: str) -> None:
        self.total += 1
        self._counts[reason] += 1
        places = self._places.setdefault(reason, [])
        if len(places) < _RECORDED:
            places.append(where)

    @property
    def first_places(self) -> str:
        """The first places with their reasons; the rest is counted."""
        parts = []
        for reason, places in list(self._places.items())[:_REASONS]:
            more = self._counts[reason] - _PLACES
            names = ", ".join(places[:_PLACES]) + (f" and {more:,} more" if more > 0 else "")
            parts.append(f"{names}: {reason}")
        others = self.total - sum(list(self._counts.values())[:_REASONS])
        return "; ".join(parts) + (f"; {others:,} more for other reasons" if others else "")

    def __str__(self) -> str:
        return f"{self.total:,} left out ({self.first_places})" if self.total else "none left out"

    def record(self) -> dict[str, Any]:
        reasons = [
            {"reason": reason, "rows": self._counts[reason], "first": places}
            for reason, places in list(self._places.items())[:_RECORDED]
        ]
        return {"rows": self.total, "reasons": reasons}


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
