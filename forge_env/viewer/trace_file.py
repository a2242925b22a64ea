"""The timeline of a run: the spans of trace.json, followed while it is written, and the part that a window shows."""

from __future__ import annotations

import math
from typing import Any

from forge_env.viewer.file_follower import Followed
from forge_env.viewer.index_row import parse, plain

MOST_SPANS = 4000
"""In an answer; shorter ones are then left out, and counted."""
MOST_KEPT = 1_000_000


class Spans(Followed):
    """Complete events ("ph": "X") of a Chrome trace, one to a line. Any thread may call it."""

    def _clear(self) -> None:
        self._tracks: dict[tuple[int, int], str] = {}
        self._order: dict[tuple[int, int], int] = {}
        self._spans: list[tuple[float, float, tuple[int, int], str, Any]] = []

    def read(self, start: float | None, end: float | None) -> dict[str, Any]:
        """Spans that touch a window, in seconds from the first one; the longest, where there are too many."""
        with self._lock:
            if not self._spans:
                return {"lanes": [], "spans": [], "start": 0, "end": 0, "total": 0, "left_out": 0}
            origin = min(span[0] for span in self._spans)
            whole = max(span[0] + span[1] for span in self._spans) - origin
            a, b = (0.0 if start is None else start), (whole if end is None else end)
            inside = [s for s in self._spans if s[0] - origin <= b and s[0] + s[1] - origin >= a]
            total = len(inside)
            if total > MOST_SPANS:
                inside = sorted(inside, key=lambda s: -s[1])[:MOST_SPANS]
            keys = sorted({span[2] for span in self._spans}, key=lambda key: (self._order.get(key, 0), key))
            lanes = {key: number for number, key in enumerate(keys)}
            return {
                "lanes": [self._tracks.get(key, f"track {key[1]}") for key in keys],
                "spans": [[lanes[s[2]], s[0] - origin, s[1], s[3], s[4]] for s in inside],
                "start": 0,
                "end": whole,
                "total": total,
                "left_out": total - len(inside),
            }

    def _add(self, line: bytes) -> None:
        text = line.strip().strip(b"[],")
        if not text:
            return
        try:
            event = parse(text)
            kind, key = event["ph"], (int(event.get("pid", 0)), int(event["tid"]))
            if kind == "M" and event["name"] == "thread_name":
                self._tracks[key] = plain(event["args"]["name"])[:200]
            elif kind == "M" and event["name"] == "thread_sort_index":
                self._order[key] = int(event["args"]["sort_index"])
            elif kind == "X" and len(self._spans) < MOST_KEPT:
                start, seconds = float(event["ts"]) / 1e6, float(event["dur"]) / 1e6
                if not (math.isfinite(start) and 0 <= seconds < math.inf):
                    raise ValueError("no time")
                self._spans.append((start, seconds, key, plain(event["name"])[:200], event.get("args") or None))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            self.bad += 1
