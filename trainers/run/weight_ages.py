"""WeightAges: the staleness of the episodes that a step trains on, in the unit of `training.staleness`.

A token carries the version of the weights that sampled it. Versions count publications. There may be several optimizer
steps between two publications, and a step may be skipped; so a run keeps the number of optimizer steps of each version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forge_env.core.episode import Episode


@dataclass(kw_only=True)
class WeightAges:
    """The optimizer steps behind the trainer's weights and behind each version that may still have sampled a token."""

    staleness: int
    """Optimizer steps between the weights that sampled and those that are trained, at most."""
    updates: int = 0
    """Optimizer steps that changed the trainer's weights."""
    versions: dict[int, int] = field(default_factory=dict)
    """Version -> `updates` at its publication."""

    def note_version(self, version: int) -> None:
        """Record that the present weights are published as `version`; call it before the next optimizer step."""
        self.versions.setdefault(version, self.updates)
        for older in sorted(self.versions)[: -self.staleness - 2]:
            del self.versions[older]

    def note_step(self, *, skipped: bool) -> None:
        """Record an optimizer step; a skipped one changed no weights."""
        self.updates += not skipped

    def of(self, episodes: Sequence[Episode]) -> list[int]:
        """Optimizer steps from the oldest weights that sampled a token of an episode to the present ones.

        Returns:
            One number for each episode that has sampled tokens.
        """
        return [self.updates - min(self.versions[v] for v in e.versions) for e in episodes if e.versions]

    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {"updates": self.updates, "versions": [[*pair] for pair in self.versions.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.updates, self.versions = state["updates"], dict(state["versions"])
