"""A process of the guest that is started again after it died."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from forge_env.core.errors import SandboxError, SandboxUnavailable
from forge_env.utils.deadlines import queued

_STARTS, _STARTS_S = 2, 60.0
"""Starts after a death within so many seconds: the next death within them is reported, and not mended."""


class Mortal(Protocol):
    """A process that can die, as `Controlled`."""

    alive: bool
    reason: str
    """Why it is not alive."""

    async def close(self) -> None: ...


Process = TypeVar("Process", bound=Mortal)


class Restarted(Generic[Process]):
    """A process, and another one when it is needed after that has died; but not if it dies again and again.

    Args:
        start: starts another process.
        closed: the sentence for a call after the end.
    """

    def __init__(self, process: Process, start: Callable[[], Awaitable[Process]], *, closed: str) -> None:
        self.process = process
        self._start, self._closed_sentence = start, closed
        self._one_at_a_time = asyncio.Lock()
        self._starts: deque[float] = deque(maxlen=_STARTS)
        self._closed = False

    async def live(self) -> Process:
        """Return the process; start another one if it has died. Raises SandboxError, also after `close`."""
        async with queued(), self._one_at_a_time:  # the start of a process has its own deadline
            if self._closed:
                raise SandboxError(self._closed_sentence)
            if not self.process.alive:
                try:
                    await self.process.close()
                    self._require_rarely()
                    self.process = await self._start()
                except (SandboxUnavailable, OSError) as error:  # it was available before
                    raise SandboxError(str(error)) from error
            return self.process

    async def close(self) -> None:
        """End the process, for good. Idempotent."""
        self._closed = True
        async with self._one_at_a_time:  # not while another one starts: it would outlive the sandbox
            await self.process.close()

    def _require_rarely(self) -> None:
        now = asyncio.get_running_loop().time()
        if len(self._starts) == _STARTS and now - self._starts[0] < _STARTS_S:
            raise SandboxError(
                f"{self.process.reason}; that was the last of {_STARTS + 1} deaths within {_STARTS_S:g} s, so it is "
                "not started again for that time"
            )
        self._starts.append(now)
