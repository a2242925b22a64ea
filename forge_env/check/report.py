"""What the checks of an environment found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One check and what came of it.

    Example: ``CheckRow(name="gold answers", ok=True, detail="8 of 8 tasks score full marks", seconds=0.02)``
    """

    name: str
    ok: bool | None
    """None when it was skipped; `detail` says why."""
    detail: str
    """One sentence; of a failure, what to change."""
    seconds: float = 0.0
    unfinished: bool = False
    """The budget ended it, or one that it needs, before it could say anything; `ok` is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long calls of one kind took, in milliseconds, one instance at a time."""

    p50: float
    p95: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency | None:
        """The nearest-rank percentiles of some durations in seconds; None when there are none."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        p50, p95 = (ordered[math.ceil(q * len(ordered)) - 1] * 1000.0 for q in (0.5, 0.95))
        return cls(p50=p50, p95=p95)


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The table of all checks, and what a `reset` and a `step` cost."""

    name: str
    rows: tuple[CheckRow, ...]
    reset: Latency | None = None
    step: Latency | None = None
    isolation: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What each sandbox and worker that the episodes share enforces, found out by trying it, by its name."""

    @property
    def ok(self) -> bool:
        """Whether no check failed; one that was skipped or not finished did not."""
        return all(row.ok is not False for row in self.rows)

    @property
    def not_checked(self) -> tuple[str, ...]:
        """The names of the checks that the budget ended: they neither passed nor failed."""
        return tuple(row.name for row in self.rows if row.unfinished)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: `name`, `ok`, `not_checked`, `rows`, `isolation`, and `reset` and `step` in ms."""
        rows = [asdict(row) for row in self.rows]
        return {**asdict(self), "ok": self.ok, "not_checked": list(self.not_checked), "rows": rows}
