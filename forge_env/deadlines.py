"""Deadlines that stop their clocks while a caller waits in a queue of ours.

An episode's limits are about its own work. A call that waits for a place (a tool's concurrency, a rate limit) wraps the
waiting in `queued()`, and every deadline around it is moved by the time that it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any


class Deadline:
    """`asyncio.timeout` with a clock that can be stopped.

    Raises:
        TimeoutError: out of the `async with`, when the seconds are used up; `expired` is then true.
    """

    __slots__ = ("_left", "_open", "_timeout", "_token", "_waiting")

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._waiting = 0
        self._open = False
        self._timeout = asyncio.Timeout(None)

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    async def __aenter__(self) -> Deadline:
        await self._timeout.__aenter__()
        self._open = True
        self._start()
        self._token = _around.set((*_around.get(), self))
        return self

    async def __aexit__(self, *exc: Any) -> None:
        _around.reset(self._token)
        self._open = False  # a child task that still waits in a queue must not start the clock again
        await self._timeout.__aexit__(*exc)

    def stop(self) -> None:
        """Stop the clock; counted, so that two waits at once stop it once."""
        self._waiting += 1
        when = self._timeout.when()
        if self._waiting == 1 and when is not None and self._is_running:
            self._left = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def go_on(self) -> None:
        self._waiting -= 1
        if self._waiting == 0 and self._is_running:
            self._start()

    @property
    def _is_running(self) -> bool:
        return self._open and not self.expired

    def _start(self) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)


_around: ContextVar[tuple[Deadline, ...]] = ContextVar("deadlines", default=())


@contextmanager
def _stopped() -> Iterator[None]:
    stopped = _around.get()
    for deadline in stopped:
        deadline.stop()
    try:
        yield
    finally:
        for deadline in stopped:
            deadline.go_on()


@asynccontextmanager
async def queued() -> AsyncIterator[None]:
    """Stop the clocks of all deadlines around the caller while it waits for a place.

    What waits inside needs an end of its own: no deadline of the episode fires here.
    """
    with _stopped():
        yield
