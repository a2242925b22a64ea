"""The curves of a run: metrics.jsonl, followed while it is written, thinned out for the page."""

from __future__ import annotations

import math
from typing import Any

from forge_env.viewer.file_follower import Followed
from forge_env.viewer.index_row import parse, plain

MOST_POINTS = 1000
"""Of one curve on the page; of a longer one each point is the mean of several."""
MOST_NAMES = 500
_OWN = ("phase", "step", "time")


class Series(Followed):
    """The numbers of metrics.jsonl by phase and name. Any thread may call it."""

    def _clear(self) -> None:
        self._lines: dict[str, dict[str, list[float]]] = {}

    def names(self) -> dict[str, list[str]]:
        """Names of the metrics of each phase."""
        with self._lock:
            return {phase: [name for name in each if name not in _OWN] for phase, each in self._lines.items()}

    def last(self, phase: str = "train") -> dict[str, float]:
        """The newest values of a phase."""
        with self._lock:
            return {name: values[-1] for name, values in self._lines.get(phase, {}).items() if values}

    def read(self, phase: str, names: list[str]) -> dict[str, Any]:
        """Points of some metrics: {"step": [...], "time": [...], "per_point": k, "values": {name: [...]}}.

        What is no number is null. A curve of more than `MOST_POINTS` lines is thinned out: means of k lines each.
        """
        with self._lock:
            lines = self._lines.get(phase, {})
            count = len(lines.get("step", ()))
            k = max(1, math.ceil(count / MOST_POINTS))
            return {
                "step": _thin(lines.get("step", []), k, last=True),
                "time": _thin(lines.get("time", []), k, last=True),
                "per_point": k,
                "values": {name: _thin(lines[name], k) for name in names if name in lines},
            }

    def _add(self, line: bytes) -> None:
        try:
            record = parse(line)
            phase, step, time = plain(record["phase"]), float(record["step"]), float(record["time"])
        except (ValueError, KeyError, TypeError, OverflowError):
            self.bad += 1
            return
        lines = self._lines.setdefault(phase, {"step": [], "time": []})
        count = len(lines["step"])
        lines["step"].append(step)
        lines["time"].append(time)
        for name, value in record.items():
            if name in _OWN or not isinstance(value, int | float):
                continue
            name = plain(name)
            if name not in lines and len(lines) >= MOST_NAMES:
                continue
            values = lines.setdefault(name, [])
            values += [math.nan] * (count - len(values))
            values.append(_float(value))
        for values in lines.values():
            values += [math.nan] * (count + 1 - len(values))


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _thin(values: list[float], k: int, *, last: bool = False) -> list[float | None]:
    if k == 1:
        return [value if math.isfinite(value) else None for value in values]
    thinned: list[float | None] = []
    for start in range(0, len(values), k):
        finite = [value for value in values[start : start + k] if math.isfinite(value)]
        thinned.append(None if not finite else finite[-1] if last else math.fsum(finite) / len(finite))
    return thinned
