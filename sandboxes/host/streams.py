"""What goes into and comes out of one execution: sealed memory files in, capped pipes out."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CHUNK = 64 * 2**10
_MAX_PIPE_CHUNKS = 64  # more than the largest pipe that the kernel grants to an ordinary user
_F_ADD_SEALS, _ALL_SEALS = 1033, 0xF  # F_SEAL_SEAL | SHRINK | GROW | WRITE


def sealed_file(data: bytes) -> int:
    """Return the descriptor of a memory file with `data`, at its start, that nobody can change any more.

    Unlike a pipe it needs no writer that could block on a reader that never reads.
    """
    fd = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def sealed_files(*contents: bytes) -> Iterator[list[int]]:
    """Yield the descriptors of one sealed file for each of `contents` that is not empty."""
    fds: list[int] = []
    try:
        for data in contents:
            if data:
                fds.append(sealed_file(data))
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


class CappedPipe:
    """A pipe that is read to its end, of which the first `cap` bytes are kept.

    Args:
        cap: bytes to keep; the rest is counted and thrown away, so that a flood costs no memory.
        on_flood: called once when more than `flood` bytes have come.
    """

    def __init__(self, cap: int, flood: int, on_flood: Callable[[], None]) -> None:
        self._cap = cap
        self._flood = flood
        self._on_flood = on_flood
        self._told = False
        self._listening = True
        self._kept = bytearray()
        self._total = 0
        self._loop = asyncio.get_running_loop()
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        self._loop.add_reader(self._read_fd, self._read)

    @property
    def data(self) -> bytes:
        return bytes(self._kept)

    @property
    def truncated(self) -> bool:
        return self._total > self._cap

    @property
    def flooded(self) -> bool:
        return self._total > self._flood

    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")

    def close_write_end(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def restart(self) -> None:
        """Forget what came so far, and listen again after a `pause`."""
        self._kept.clear()
        self._total = 0
        self._told = False
        if self._read_fd >= 0 and not self._listening:
            self._listening = True
            self._loop.add_reader(self._read_fd, self._read)

    def pause(self) -> None:
        """Take what is in the pipe now and stop listening: writers then wait as soon as the pipe is full."""
        if self._listening:
            self._drain()
        self._listening = False
        if self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)

    def close(self) -> None:
        """Take what is still in the pipe and free both ends."""
        self.close_write_end()
        self._drain()
        if self._read_fd >= 0:
            self._stop_reading()

    def _drain(self) -> None:
        """Never waits, and ends even while somebody goes on writing."""
        for _ in range(_MAX_PIPE_CHUNKS):
            if not self._read():
                return

    def _read(self) -> bool:
        """Read once; return whether there may be more."""
        if self._read_fd < 0:
            return False
        try:
            chunk = os.read(self._read_fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._stop_reading()
            return False
        self._total += len(chunk)
        self._kept += chunk[: max(0, self._cap - len(self._kept))]
        if self.flooded and not self._told:
            self._told = True
            self._on_flood()
        return True

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._read_fd)
        os.close(self._read_fd)
        self._read_fd = -1
