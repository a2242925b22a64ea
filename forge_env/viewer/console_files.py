"""What a run says while it works: the newest lines of its console, and the end of each log of its processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from forge_env.viewer.index_row import parse
from forge_env.viewer.stored_runs import Run

TAIL = 256 << 10
"""Bytes that are read of the end of a file."""
MOST_LOGS = 500


class Output:
    """console.jsonl and the folder logs of one run, read anew each time. Any thread may call it."""

    def __init__(self, run: Run) -> None:
        self._console = run.path / "console.jsonl"
        self._logs = run.path / "logs"

    def size(self) -> int:
        """Bytes of all of it: another number means that there is something new."""
        return _size(self._console) + sum(each["bytes"] for each in self._listed())

    def read(self, log: str = "") -> dict[str, Any]:
        """{"lines": [{"time", "kind", "text"}...], "logs": [{"name", "bytes"}...], "log": the end of one}.

        Args:
            log: name of the log whose end is wanted; of one that is not listed there is none.
        """
        logs = self._listed()
        is_known = any(each["name"] == log for each in logs)
        lines = [_line(line) for line in _tail(self._console).splitlines()]
        return {
            "lines": [line for line in lines if line is not None],
            "logs": logs,
            "log": _tail(self._logs / log).decode("utf-8", "replace") if is_known else "",
        }

    def _listed(self) -> list[dict[str, Any]]:
        try:
            found = sorted(Path(e.path) for e in os.scandir(self._logs) if e.is_file(follow_symlinks=False))
        except OSError:
            return []
        return [{"name": path.name, "bytes": _size(path)} for path in found[:MOST_LOGS]]


def _line(line: bytes) -> dict[str, Any] | None:
    """Seconds since the start, kind and text of a line of console.jsonl; None for another line."""
    try:
        record = parse(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        return None
    time, kind = record.get("time"), record.get("kind")
    seconds = float(time) if isinstance(time, int | float) and abs(time) < 1e12 else None
    return {"time": seconds, "kind": kind if kind in ("warning", "error") else "said", "text": record["text"]}


def _tail(path: Path) -> bytes:
    """The end of a file, from the beginning of a line on."""
    try:
        with path.open("rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - TAIL)
            file.seek(start)
            if start:
                file.readline()
            return file.read()
    except OSError:
        return b""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
