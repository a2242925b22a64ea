"""SkippedSteps: ends supervised training of which no step changes a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forge_env.core.errors import NothingTrained


@dataclass(slots=True, kw_only=True)
class SkippedSteps:
    phase: str
    """Its name, such as "the warm-up"."""
    rate: str
    """The option of its learning rate."""
    most: int
    """Of the first steps that may be skipped before the phase ends; 0 is without end."""
    taken: int = 0
    skipped: int = 0

    def add(self, metrics: Mapping[str, float]) -> None:
        self.taken, self.skipped = self.taken + (not metrics["skipped"]), self.skipped + bool(metrics["skipped"])
        if self.skipped == self.most:
            self.check(metrics)

    def check(self, metrics: Mapping[str, float]) -> None:
        if not self.taken and self.skipped:
            why = (
                f"loss or gradient was not finite: lower --{self.rate}" if metrics["tokens"] else "no token was learned"
            )
            raise NothingTrained(f"{self.phase} trained nothing: none of its {self.skipped} steps was taken, as {why}")
