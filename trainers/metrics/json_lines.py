"""Files of JSON lines that a run appends to: metrics.jsonl, and trained.jsonl.

Unlike the sinks of contrib they are written at once, in the thread that calls: if one cannot be written, the run ends.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from forge_env.core.episode import Episode
from forge_env.records.sinks import Record
from trainers.objective.credit import turn_values


class JsonLines:
    """Appends to the file at `path`; any thread may call it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with self._lock:
            if not self._file.closed:
                self._file.write(text)
                self._file.flush()

    def size(self) -> int:
        """Bytes of complete lines, which are on the disk when it returns."""
        with self._lock:
            self._file.flush()
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Metrics(JsonLines):
    """The sink of metrics.jsonl, with one record a line; "time" is seconds since the start of the run."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        super().__init__(path)
        self._clock = clock

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        self.append([{"phase": phase, "step": step, "time": self._clock(), **values}])

    def go_back(self, size: int) -> list[Record]:
        """Cut off everything after `size`; returns the records that stay."""
        records = []
        with self._lock:
            os.truncate(self.path, size)
            for line in self.path.read_text(encoding="utf-8").splitlines():
                values = json.loads(line)
                phase, step, _ = values.pop("phase"), values.pop("step"), values.pop("time")
                records.append(Record(phase, step, values))
        return records


class Trained(JsonLines):
    """trained.jsonl: the episodes of each optimizer step, and the advantage of each of their turns.

    One line for each episode, in the order of the batch: {"step": 3, "episode": "train/7/0", "advantages": [0.7, 0.7]}.
    With credit per episode all turns have the same advantage.
    """

    def write(self, step: int, advantages: Iterable[tuple[Episode, float | np.ndarray]]) -> None:
        """Write one step: for each episode its advantage, or the advantages of its sampled targets in row order."""
        self.append(
            {"step": step, "episode": episode.id, "advantages": turn_values(values, episode)}
            for episode, values in advantages
        )
