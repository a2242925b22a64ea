"""Reads the new lines of a file that is still being written."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from pathlib import Path

_HEAD_BYTES = 256


class FileFollower(ABC):
    """Reads lines as they are appended, and starts again when the file was replaced or cut.

    Any thread may call `update`. A subclass takes `_lock` before it reads what `_add_line` has kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._reset()

    def update(self) -> bool:
        with self._lock:
            try:
                return self._read_new_lines()
            except OSError:
                had_lines = self._offset > 0
                self._reset()
                return had_lines

    @abstractmethod
    def _clear(self) -> None:
        """Forget every line."""

    @abstractmethod
    def _add_line(self, line: bytes) -> None:
        """Keep one line; ignore one that cannot be read."""

    def _reset(self) -> None:
        self._offset = 0
        self._inode = -1
        self._head = b""
        self._clear()

    def _read_new_lines(self) -> bool:
        status = self._path.stat()
        with self._path.open("rb") as file:
            head = file.read(len(self._head) or _HEAD_BYTES)
            if status.st_ino != self._inode or status.st_size < self._offset or not head.startswith(self._head):
                self._reset()
                self._inode = status.st_ino
                self._head = head if len(head) == _HEAD_BYTES else b""
            file.seek(self._offset)
            data = file.read()
        whole_lines = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole_lines)
        for line in whole_lines.splitlines():
            self._add_line(line)
        return bool(whole_lines)
