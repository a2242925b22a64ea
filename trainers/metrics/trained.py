"""trained.jsonl: the episodes of each optimizer step, and the advantage of each of their turns.

One line for each episode, in the order of the batch: {"step": 3, "episode": "train/7/0", "advantages": [0.7, 0.7]}.
With credit per episode all turns have the same advantage.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from forge_env.core.episode import Episode
from trainers.objective.credit import turn_values


class Trained:
    """Appends to the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, advantages: Iterable[tuple[Episode, float | np.ndarray]]) -> None:
        """Write one step: for each episode its advantage, or the advantages of its sampled targets in row order."""
        for episode, values in advantages:
            by_turn = turn_values(values, episode)
            self._file.write(json.dumps({"step": step, "episode": episode.id, "advantages": by_turn}) + "\n")
        self._file.flush()

    def size(self) -> int:
        """Bytes of complete lines, which are on the disk when it returns."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()
