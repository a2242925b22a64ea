"""The timeline of a run: the spans of trace.json, read while it is being written."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from contrib.viewer.file_follower import FileFollower
from contrib.viewer.lenient_json import encodable, parse_json

MAX_SPANS = 4000
"""Spans of one answer. If there are more, the shortest are left out and counted."""
MAX_SPANS_KEPT = 1_000_000

Lane = tuple[int, int]
"""Process id and thread id of a Chrome trace."""


class Span(NamedTuple):
    start: float
    """Seconds."""
    seconds: float
    lane: Lane
    name: str
    details: Any

    @property
    def end(self) -> float:
        return self.start + self.seconds


class TraceFile(FileFollower):
    """The complete events ("ph": "X") of a Chrome trace, one to a line. Any thread may call its methods."""

    def _clear(self) -> None:
        self._lane_names: dict[Lane, str] = {}
        self._lane_order: dict[Lane, int] = {}
        self._spans: list[Span] = []

    def read_spans(self, window_start: float | None, window_end: float | None) -> dict[str, Any]:
        """The spans that touch a window, in seconds from the first span; the longest, if there are too many."""
        with self._lock:
            if not self._spans:
                return {"lanes": [], "spans": [], "end": 0, "total": 0, "left_out": 0}
            origin = min(span.start for span in self._spans)
            end = max(span.end for span in self._spans) - origin
            low = origin + (0.0 if window_start is None else window_start)
            high = origin + (end if window_end is None else window_end)
            inside = [span for span in self._spans if span.start <= high and span.end >= low]
            spans = inside
            if len(inside) > MAX_SPANS:
                spans = sorted(inside, key=lambda span: -span.seconds)[:MAX_SPANS]
            lanes = sorted({span.lane for span in self._spans}, key=lambda lane: (self._lane_order.get(lane, 0), lane))
            numbers = {lane: number for number, lane in enumerate(lanes)}
            return {
                "lanes": [self._lane_names.get(lane, f"track {lane[1]}") for lane in lanes],
                "spans": [
                    [numbers[span.lane], span.start - origin, span.seconds, span.name, span.details] for span in spans
                ],
                "end": end,
                "total": len(inside),
                "left_out": len(inside) - len(spans),
            }

    def _add_line(self, line: bytes) -> None:
        text = line.strip().strip(b"[],")
        if not text:
            return
        try:
            event = parse_json(text)
            kind, lane = event["ph"], (int(event.get("pid", 0)), int(event["tid"]))
            if kind == "M" and event["name"] == "thread_name":
                self._lane_names[lane] = encodable(event["args"]["name"])[:200]
            elif kind == "M" and event["name"] == "thread_sort_index":
                self._lane_order[lane] = int(event["args"]["sort_index"])
            elif kind == "X" and len(self._spans) < MAX_SPANS_KEPT:
                start, seconds = float(event["ts"]) / 1e6, float(event["dur"]) / 1e6
                if not (math.isfinite(start) and 0 <= seconds < math.inf):
                    raise ValueError("the times of the span are not finite")
                name, details = encodable(event["name"])[:200], event.get("args") or None
                self._spans.append(Span(start, seconds, lane, name, details))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            pass  # not an event
