"""The output of a run: the newest lines of its console, and the end of the log of each of its processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from contrib.viewer.lenient_json import json_lines
from contrib.viewer.stored_runs import StoredRun

TAIL_BYTES = 256 << 10
"""How much of the end of a file is read."""
MAX_LOGS = 500


class ConsoleFiles:
    """console.jsonl and the folder logs of a run, read anew for each request. Any thread may call its methods."""

    def __init__(self, run: StoredRun) -> None:
        self._console = run.path / "console.jsonl"
        self._logs = run.path / "logs"

    def size(self) -> int:
        return _size(self._console) + sum(log["bytes"] for log in self._list_logs())

    def read(self, log_name: str = "") -> dict[str, Any]:
        """{"lines": [{"time", "kind", "text"}, ...], "logs": [{"name", "bytes"}, ...], "log": the end of one log}."""
        logs = self._list_logs()
        is_known = any(log["name"] == log_name for log in logs)  # so no name leads out of the folder
        lines = json_lines(_read_tail(self._console))
        return {
            "lines": [_console_line(line) for line in lines if isinstance(line.get("text"), str)],
            "logs": logs,
            "log": _read_tail(self._logs / log_name).decode("utf-8", "replace") if is_known else "",
        }

    def _list_logs(self) -> list[dict[str, Any]]:
        try:
            paths = sorted(Path(e.path) for e in os.scandir(self._logs) if e.is_file(follow_symlinks=False))
        except OSError:
            return []
        return [{"name": path.name, "bytes": _size(path)} for path in paths[:MAX_LOGS]]


def _console_line(record: dict[str, Any]) -> dict[str, Any]:
    """Seconds since the start, kind and text."""
    time, kind = record.get("time"), record.get("kind")
    seconds = float(time) if isinstance(time, int | float) and abs(time) < 1e12 else None
    return {"time": seconds, "kind": kind if kind in ("warning", "error") else "said", "text": record["text"]}


def _read_tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES)
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
