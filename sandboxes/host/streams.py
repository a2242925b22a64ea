"""Inputs and outputs of an execution: sealed memory files in, capped pipes out."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forge_env.core.errors import SandboxError

_CHUNK = 64 * 2**10
_MAX_PIPE_CHUNKS = 64  # more than the largest pipe that the kernel grants to an ordinary user
_F_ADD_SEALS, _ALL_SEALS = 1033, 0xF  # F_SEAL_SEAL | SHRINK | GROW | WRITE


@contextmanager
def machine_faults() -> Iterator[None]:
    """Raise SandboxError for what this machine refuses, such as another descriptor: no code in a sandbox did it."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        raise SandboxError(f"this machine has no room for what a sandbox needs: {error.strerror or error}") from error


def sealed_file(data: bytes) -> int:
    """Return the descriptor of an immutable memory file with `data`, positioned at its start.

    Unlike a pipe it needs no writer, which could block on a reader that never reads.
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
    """Yield the descriptors of sealed files, one for every non-empty content."""
    fds: list[int] = []
    try:
        for data in filter(None, contents):
            fds.append(sealed_file(data))
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


class CappedPipe:
    """A pipe that is read to its end and keeps the first `cap` bytes.

    Args:
        cap: bytes to keep; the rest is counted and discarded, so a flood costs no memory.
        on_flood: called once after more than `flood` bytes.
        on_data: called with every chunk, also with discarded ones.
    """

    def __init__(
        self, cap: int, flood: float, on_flood: Callable[[], None], on_data: Callable[[bytes], None] | None = None
    ) -> None:
        self._cap = cap
        self._flood = flood
        self._on_flood = on_flood
        self._on_data = on_data
        self._has_reported = False
        self._reading = True
        self._head = bytearray()
        self.total = 0
        """Bytes read so far, with those that were discarded."""
        self._loop = asyncio.get_running_loop()
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        self._loop.add_reader(self._read_fd, self._read)

    @property
    def data(self) -> bytes:
        return bytes(self._head)

    @property
    def truncated(self) -> bool:
        return self.total > self._cap

    @property
    def is_flooded(self) -> bool:
        return self.total > self._flood

    def text(self) -> str:
        return self._head.decode("utf-8", "replace")

    def close_write_end(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def restart(self) -> None:
        """Discard the data so far, and read again after a `pause`."""
        self._head.clear()
        self.total = 0
        self._has_reported = False
        if self._read_fd >= 0 and not self._reading:
            self._reading = True
            self._loop.add_reader(self._read_fd, self._read)

    def pause(self) -> None:
        """Read what is in the pipe and stop reading: writers then block when the pipe is full."""
        if self._reading:
            self._drain()
        self._reading = False
        if self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)

    def close(self) -> None:
        """Read what is left in the pipe and close both ends."""
        self.close_write_end()
        self._drain()
        if self._read_fd >= 0:
            self._stop_reading()

    def _drain(self) -> None:
        """Read what is there without waiting; bounded, even if a process keeps writing."""
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
        self.total += len(chunk)
        self._head += chunk[: max(0, self._cap - len(self._head))]
        if self._on_data is not None:
            self._on_data(chunk)
        if self.is_flooded and not self._has_reported:
            self._has_reported = True
            self._on_flood()
        return True

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._read_fd)
        os.close(self._read_fd)
        self._read_fd = -1
