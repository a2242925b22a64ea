"""A file of lines, followed while it is written."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from pathlib import Path

_HEAD = 256


class Followed(ABC):
    """Reads the lines that are new, and begins again when the file is another one or was cut.

    Any thread may call `update`; what else reads takes `_lock`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._begin()

    def update(self) -> bool:
        """Read what is new; returns whether there was anything."""
        with self._lock:
            try:
                return self._update()
            except OSError:
                gone = self._done > 0
                self._begin()
                return gone

    @abstractmethod
    def _clear(self) -> None:
        """Forget every line."""

    @abstractmethod
    def _add(self, line: bytes) -> None:
        """Take one line; one that cannot be read is counted in `bad`."""

    def _begin(self) -> None:
        self._done = 0
        self._inode = -1
        self._head = b""
        self.bad = 0
        self._clear()

    def _update(self) -> bool:
        status = self._path.stat()
        with self._path.open("rb") as file:
            head = file.read(len(self._head) or _HEAD)
            if status.st_ino != self._inode or status.st_size < self._done or not head.startswith(self._head):
                self._begin()
                self._inode = status.st_ino
                self._head = head if len(head) == _HEAD else b""
            file.seek(self._done)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._done += len(whole)
        for line in whole.splitlines():
            self._add(line)
        return bool(whole)
