"""The timeline of a run: rollouts, scoring, training and weight updates side by side, for Perfetto or chrome://tracing.

The file is Chrome's JSON array of trace events, one on a line. Each event is written over the closing bracket, together
with the next one, so the file of a run that goes on or was killed is JSON too.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainers.metrics.observer import Observer

_HEAD = "[\n"


class Timeline(Observer):
    """Writes the spans of a run to trace.json; appends to an existing file after its last complete line.

    A viewer draws one span at a time on a lane. So overlapping spans of one track get lanes below each other.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = folder / "trace.json"
        self._end = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        """Where the next event begins: at the closing bracket."""
        self._lock = threading.Lock()
        self._file = path.open("r+b" if self._end else "wb", buffering=0)
        self._file.truncate(self._end)
        self._put("" if self._end else _HEAD)
        self._origin = time.time() - time.perf_counter()  # spans of a resumed run come after the old ones
        self._lanes: dict[str, list[bool]] = {}
        self._ids: dict[tuple[str, int], int] = {}

    @contextmanager
    def span(self, track: str, name: str, details: Mapping[str, Any]) -> Iterator[None]:
        """Record the duration of the block, also when it raises."""
        lane = self._enter(track)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._write(track, lane, name, start, time.perf_counter(), details)
            self._lanes[track][lane] = False

    def past(self, track: str, spans: Iterable[tuple[str, float, float]]) -> None:
        """Record spans that are over: name, `time.time()` at the start, and seconds. The track has no other spans."""
        ends: list[float] = []  # of the last span of each lane
        for name, began, seconds in sorted(spans, key=lambda span: span[1]):
            lane = next((number for number, end in enumerate(ends) if end <= began), len(ends))
            ends[lane:] = [began + seconds, *ends[lane + 1 :]]
            start = began - self._origin
            self._write(track, lane, name, start, start + seconds, {})

    def close(self) -> None:
        self._file.close()

    def _enter(self, track: str) -> int:
        lanes = self._lanes.setdefault(track, [])
        free = next((number for number, is_busy in enumerate(lanes) if not is_busy), len(lanes))
        lanes[free:] = [True, *lanes[free + 1 :]]
        return free

    def _write(self, track: str, lane: int, name: str, start: float, end: float, details: Mapping[str, Any]) -> None:
        if self._file.closed:
            return
        number = self._ids.get((track, lane))
        if number is None:
            number = self._ids[track, lane] = len(self._ids) + 1
            title = track if lane == 0 else f"{track} {lane + 1}"
            self._event(name="thread_name", ph="M", tid=number, args={"name": title})
            self._event(name="thread_sort_index", ph="M", tid=number, args={"sort_index": number})
        microseconds = round((self._origin + start) * 1e6)
        self._event(name=name, ph="X", tid=number, ts=microseconds, dur=round((end - start) * 1e6), args={**details})

    def _event(self, **event: Any) -> None:
        self._put(json.dumps({"pid": os.getpid(), **event}) + "\n")

    def _put(self, line: str) -> None:
        """Write a line and the bracket. The bracket has no line end: who follows the file reads whole lines only."""
        with self._lock:
            data, at = f"{',' if self._end > len(_HEAD) and line else ''}{line}]".encode(), self._end
            while data:
                count = os.pwrite(self._file.fileno(), data, at)
                data, at = data[count:], at + count
            self._end = at - 1
