"""The reports of `forge-env check`: of an audit, a row for each task; of the checks, a row for each, and latencies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """What the audit found out about one task. A reward is None for an episode without one."""

    name: str
    solution: float | None = None
    empty: float | None = None
    cheats: Mapping[str, float | None] = field(default_factory=dict)
    """What a cheat does -> its reward."""
    paid: tuple[str, ...] = ()
    """The cheats that earned more than an empty answer."""
    holes: tuple[str, ...] = ()
    """What is wrong with the grader that rewards each of them."""
    needs_network: bool
    """Whether a script of the verifier fetches something."""
    is_deterministic: bool = False
    """Whether two runs gave the solution the same reward, and an empty answer as well."""
    verifier_seconds: float = 0.0
    """The longest run of the verifier on the solution."""
    verifier_limit: float
    """Its time limit in seconds; 0 for none."""
    problems: tuple[str, ...]
    """A sentence for each reason not to trust the task, beside the cheats that are paid."""
    seconds: float = 0.0
    """How long the audit of the task took."""

    @property
    def ok(self) -> bool:
        return not self.problems and not self.paid


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    name: str
    tasks: tuple[TaskReport, ...]
    not_audited: tuple[str, ...]
    """Names of the tasks that the time budget left out."""
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.not_audited and all(task.ok for task in self.tasks)

    @property
    def hackable(self) -> tuple[str, ...]:
        return tuple(task.name for task in self.tasks if task.paid)

    @property
    def paid(self) -> dict[str, int]:
        names = dict.fromkeys(name for task in self.tasks for name in task.cheats)
        return {name: sum(name in task.paid for task in self.tasks) for name in names}

    def to_dict(self) -> dict[str, Any]:
        tasks = [{**asdict(task), "ok": task.ok} for task in self.tasks]
        return {
            "name": self.name,
            "ok": self.ok,
            "hackable": list(self.hackable),
            "paid": self.paid,
            "not_audited": list(self.not_audited),
            "seconds": self.seconds,
            "tasks": tasks,
        }


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
        ascending = sorted(seconds)
        p50, p95 = (ascending[math.ceil(q * len(ascending)) - 1] * 1000.0 for q in (0.5, 0.95))
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
