"""The report of `forge-env check`: one row for each check, and the latencies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    name: str
    ok: bool | None
    """None when it was skipped or not finished; `detail` gives the reason."""
    detail: str
    """One sentence; for a failure, with the remedy."""
    seconds: float = 0.0
    is_warning: bool = False
    """Whether the check passed with a warning, which is `detail`."""
    unfinished: bool = False
    """Whether the budget ended it, or a check that it needs, before it had a result; `ok` is None then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latency of calls of one kind, in milliseconds, measured with one instance at a time."""

    p50: float
    p95: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency | None:
        """Return the nearest-rank percentiles of durations in seconds; None when there are none."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        p50, p95 = (ordered[math.ceil(q * len(ordered)) - 1] * 1000.0 for q in (0.5, 0.95))
        return cls(p50=p50, p95=p95)


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    name: str
    rows: tuple[CheckRow, ...]
    reset: Latency | None = None
    step: Latency | None = None
    isolation: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name of a shared sandbox or worker -> what it enforces, as measured."""

    @property
    def ok(self) -> bool:
        """Whether no check failed; a check that was skipped or not finished has not failed."""
        return all(row.ok is not False for row in self.rows)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.rows if row.is_warning)

    @property
    def not_checked(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.rows if row.unfinished)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data: `name`, `ok`, `warnings`, `not_checked`, `rows`, `isolation`; `reset` and `step` in ms."""
        names = {"warnings": list(self.warnings), "not_checked": list(self.not_checked)}
        return {**asdict(self), "ok": self.ok, **names, "rows": [asdict(row) for row in self.rows]}
