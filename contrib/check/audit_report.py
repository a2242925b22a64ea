"""The report of an audit: one row for each task, and how often each cheat was paid."""

from __future__ import annotations

from collections.abc import Mapping
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
        """Whether every task was audited, and can be trusted."""
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
