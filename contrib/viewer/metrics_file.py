"""The curves of a run: metrics.jsonl, read while it is being written, with long curves thinned for the page."""

from __future__ import annotations

import math
from typing import Any

from contrib.viewer.file_follower import FileFollower
from contrib.viewer.lenient_json import encodable, parse_json

MAX_POINTS = 1000
"""Points of one curve on the page. Each point of a longer curve is the mean of several lines."""
MAX_METRICS = 500
_NOT_METRICS = ("phase", "step", "time")


class MetricsFile(FileFollower):
    """The numbers of metrics.jsonl, by phase and metric. Any thread may call its methods."""

    def _clear(self) -> None:
        self._columns: dict[str, dict[str, list[float]]] = {}

    def metrics_by_phase(self) -> dict[str, list[str]]:
        with self._lock:
            return {
                phase: [name for name in columns if name not in _NOT_METRICS]
                for phase, columns in self._columns.items()
            }

    def last_values(self) -> dict[str, float]:
        """The newest value of each metric of the phase "train"."""
        with self._lock:
            return {name: values[-1] for name, values in self._columns.get("train", {}).items() if values}

    def steps(self, phase: str) -> list[float]:
        with self._lock:
            return list(self._columns.get(phase, {}).get("step", ()))

    def read_curves(self, phase: str, names: list[str]) -> dict[str, Any]:
        """The points of some metrics: {"step": [...], "time": [...], "per_point": k, "values": {name: [...]}}.

        A value that is not a finite number is None. Beyond `MAX_POINTS` lines, each point is the mean of k lines.
        """
        with self._lock:
            columns = self._columns.get(phase, {})
            count = len(columns.get("step", ()))
            k = max(1, math.ceil(count / MAX_POINTS))
            return {
                "step": _thin(columns.get("step", []), k, take_last=True),
                "time": _thin(columns.get("time", []), k, take_last=True),
                "per_point": k,
                "values": {name: _thin(columns[name], k) for name in names if name in columns},
            }

    def _add_line(self, line: bytes) -> None:
        try:
            record = parse_json(line)
            phase, step, time = encodable(record["phase"]), float(record["step"]), float(record["time"])
        except (ValueError, KeyError, TypeError, OverflowError):
            return
        columns = self._columns.setdefault(phase, {"step": [], "time": []})
        count = len(columns["step"])
        columns["step"].append(step)
        columns["time"].append(time)
        for name, value in record.items():
            if name in _NOT_METRICS or not isinstance(value, int | float):
                continue
            name = encodable(name)
            if name not in columns and len(columns) >= MAX_METRICS:
                continue
            values = columns.setdefault(name, [])
            values += [math.nan] * (count - len(values))
            values.append(_to_float(value))
        for values in columns.values():
            values += [math.nan] * (count + 1 - len(values))


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a large integer
        return math.nan


def _thin(values: list[float], k: int, *, take_last: bool = False) -> list[float | None]:
    if k == 1:
        return [_short(value) for value in values]
    result: list[float | None] = []
    for start in range(0, len(values), k):
        finite = [value for value in values[start : start + k] if math.isfinite(value)]
        result.append(None if not finite else finite[-1] if take_last else _short(math.fsum(finite) / len(finite)))
    return result


def _short(value: float) -> float | None:
    """The number with the digits that a chart shows; None if it is not finite."""
    if not math.isfinite(value):
        return None
    return value if value == int(value) else float(f"{value:.6g}")
