"""Cached verdicts of a judge, in memory and, optionally, in a readable JSON-lines file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from forge_env.core.errors import InfraError, UserError


class VerdictCache:
    """Scores by key. Several processes may append to one file; every process reads it once, at its start."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._scores: dict[str, float] = {}
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._read(path)
            except OSError as error:
                raise UserError(
                    f"the cache {path} of the judge cannot be used ({error.strerror}): name another file"
                ) from None

    def get(self, key: str) -> float | None:
        return self._scores.get(key)

    def put(self, key: str, score: float, words: str) -> None:
        """Store a verdict, with the judge's text for people who read the file."""
        self._scores[key] = score
        if self._path is None:
            return
        line = json.dumps({"key": key, "score": score, "words": words}) + "\n"
        try:
            _append(self._path, line.encode())
        except OSError as error:
            raise InfraError(f"a verdict cannot be written to {self._path}: {error.strerror}") from None

    def _read(self, path: Path) -> None:
        _append(path, b"")
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):  # a process died while writing: only its line is lost
            _append(path, b"\n")
        for line in content.splitlines():
            self._scores.update(_entry(line))


def _append(path: Path, content: bytes) -> None:
    """Append with one write, so that lines of several processes do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, content)
    finally:
        os.close(file)


def _entry(line: bytes) -> dict[str, float]:
    """Return score by key of one line; {} if it is not a verdict."""
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    key, score = (entry.get("key"), entry.get("score")) if isinstance(entry, dict) else ("", None)
    if isinstance(key, str) and isinstance(score, (int, float)) and 0 <= score <= 1:
        return {key: float(score)}
    return {}
