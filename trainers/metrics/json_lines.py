"""metrics.jsonl: the run's own record of its metrics, one object per line.

Unlike the other sinks it is written at once and in the thread of the run: if it cannot be written, the run ends.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from forge_env.records.sinks import Record


class JsonLines:
    """The sink of metrics.jsonl. `log` may be called from any thread.

    Args:
        path: of the file; it is appended to.
        clock: seconds since the start of the run; each line has them as "time".
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        with self._lock:
            if self._file.closed:
                return
            record = {"phase": phase, "step": step, "time": self._clock(), **values}
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def size(self) -> int:
        """Bytes of complete lines, which are on the disk when it returns."""
        with self._lock:
            self._file.flush()
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def go_back(self, size: int) -> list[Record]:
        """Cut off everything after `size`; returns the records that stay."""
        with self._lock:
            os.truncate(self.path, size)
            return read_records(self.path)

    def close(self) -> None:
        with self._lock:
            self._file.close()


def read_records(path: Path) -> list[Record]:
    """Read a metrics.jsonl back."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        phase, step, _ = values.pop("phase"), values.pop("step"), values.pop("time")
        records.append(Record(phase, step, values))
    return records
