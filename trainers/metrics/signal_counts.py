"""How many groups have a signal, by kind of task. If all siblings have one reward, a group teaches nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from forge_env.core.episode import Group
from forge_env.evaluation.evaluate import is_success
from forge_env.evaluation.kinds import Kinds
from trainers.objective.advantages import has_signal

Fate = Literal["failed", "solved", "same"]


def fate_of(group: Group) -> Fate:
    """How a group without a signal ended: without a success, with successes only, or with both."""
    successes = sum(map(is_success, group.valid))
    return "same" if 0 < successes < len(group.valid) else "solved" if successes else "failed"


class SignalCounts:
    """Counts the groups that came back since the step before: those that are trained on, and those that are dropped."""

    def __init__(self, kinds: Kinds = Kinds()) -> None:  # noqa: B008 (frozen)
        self._kinds = kinds
        self._counts: Counter[str] = Counter()

    def add(self, group: Group, rewards: Sequence[float]) -> None:
        """Count a group, with the rewards of its valid episodes that training uses."""
        names = ["groups"]
        if not has_signal(rewards):
            names.append(fate_of(group))
        suffixes = ["", *(f"/{name}" for name in self._kinds.names_of(group.env, group.task))]
        self._counts.update(f"signal/{name}{suffix}" for name in names for suffix in suffixes)

    @property
    def metrics(self) -> dict[str, float]:
        """signal/groups; of those without a signal signal/failed, without a success, signal/solved, with successes
        only, and signal/same, with both; signal/share, the part with one; and each count by kind, signal/failed/KIND.
        Counts of 0 are left out by kind, and the share of no group."""
        totals = {f"signal/{name}": 0.0 for name in ("groups", "failed", "solved", "same")}
        totals |= {name: float(count) for name, count in self._counts.items()}
        groups, *silent = (totals[f"signal/{name}"] for name in ("groups", "failed", "solved", "same"))
        return totals | ({"signal/share": 1 - sum(silent) / groups} if groups else {})

    def clear(self) -> None:
        self._counts.clear()
