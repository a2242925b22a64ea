"""Deadlines of a run for operations that move the weights of a model."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.settings.services import DeadlinesConfig

MIB = 2**20
_WEIGHTS = 4  # bytes of a parameter, at most: weights are kept in float32, and published in the engine's dtype
_CHECKPOINT = 12  # with Adam's two moments


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines in seconds of operations that move the weights of a model.

    Each is `deadlines.base_seconds`, and the time that the bytes take at `deadlines.least_mib_per_second`.
    """

    settings: DeadlinesConfig
    parameters: int
    """Of the model; 0 leaves the base."""

    @property
    def base(self) -> float:
        """For what moves few bytes."""
        return self._seconds(0)

    @property
    def weights(self) -> float:
        """For the weights once: to load a model, to publish, pull, keep or export it."""
        return self._seconds(_WEIGHTS)

    @property
    def checkpoint(self) -> float:
        """For a checkpoint, and for the previous one, which may still be being written."""
        return self._seconds(2 * _CHECKPOINT)

    def _seconds(self, size: float) -> float:
        return self.settings.base_seconds + self.parameters * size / (self.settings.least_mib_per_second * MIB)
