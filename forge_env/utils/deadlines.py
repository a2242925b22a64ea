"""Deadlines that stop their clocks while a caller waits for something of ours.

An episode's limits are about its own work. A call that waits for a place (a tool's concurrency, a rate limit) or for
the policy wraps the waiting in `queued()`, and every deadline around it is moved by the time that it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


class Deadline:
    """A number of seconds for some work, on a clock that can be stopped. For one use.

    Example: ``await Deadline(30.0).run(work())``
    """

    __slots__ = ("_left", "_seconds", "_since", "_timeout", "_waiting")

    def __init__(self, seconds: float) -> None:
        self._seconds = self._left = seconds
        self._since: float | None = None  # when the clock was started; None while it stands
        self._waiting = -1  # waits of the work; below 0 there is no work, and so no clock to start
        self._timeout: asyncio.Timeout | None = None

    @property
    def expired(self) -> bool:
        """Whether a TimeoutError was this deadline's, and not one of the work's own."""
        return self._timeout is not None and self._timeout.expired()

    @property
    def used(self) -> float:
        """Seconds that the clock has run, up to its last stop."""
        return self._seconds - self._left

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`. Work that never waits for anything costs no timer: it is set at the first wait.

        Raises:
            TimeoutError: when the seconds are used up; `expired` is then true, and the work is cancelled.
        """
        token = _around.set((*_around.get(), self))
        self._waiting = 0
        self._start()
        try:
            waiting = work.__await__()
            try:
                wanted = next(waiting)
            except StopIteration as done:
                return done.value
            self._timeout = asyncio.Timeout(self._due())
            async with self._timeout:
                return await _Rest(waiting, wanted)
        finally:
            self._halt()
            self._waiting = -1  # a child task that still waits in a queue must not start the clock again
            _around.reset(token)

    def stop(self) -> None:
        """Stop the clock; counted, so that two waits at once stop it once."""
        if self._waiting < 0:
            return
        self._waiting += 1
        self._halt()
        self._reschedule()

    def go_on(self) -> None:
        if self._waiting > 0:
            self._waiting -= 1
            self._start()
            self._reschedule()

    def _start(self) -> None:
        if not self._waiting:
            self._since = asyncio.get_running_loop().time()

    def _halt(self) -> None:
        if self._since is not None:
            self._left -= asyncio.get_running_loop().time() - self._since
            self._since = None

    def _due(self) -> float | None:
        return None if self._since is None else self._since + self._left

    def _reschedule(self) -> None:
        if self._timeout is not None and not self.expired:
            self._timeout.reschedule(self._due())


class _Rest:
    """Awaits what is left of a coroutine whose first wait has been taken out of it."""

    __slots__ = ("_waiting", "_wanted")

    def __init__(self, waiting: Generator[Any, Any, Any], wanted: Any) -> None:
        self._waiting = waiting
        self._wanted = wanted

    def __await__(self) -> Generator[Any, Any, Any]:
        wanted = self._wanted
        try:
            while True:
                try:
                    sent = yield wanted
                except BaseException as error:
                    wanted = self._waiting.throw(error)
                else:
                    wanted = self._waiting.send(sent)
        except StopIteration as done:
            return done.value


_around: ContextVar[tuple[Deadline, ...]] = ContextVar("deadlines", default=())


@asynccontextmanager
async def queued() -> AsyncIterator[None]:
    """Stop the clocks of all deadlines around the caller while it waits for something of ours: a place, the policy.

    What waits inside needs an end of its own: no deadline of the episode fires here.
    """
    stopped = _around.get()
    for deadline in stopped:
        deadline.stop()
    try:
        yield
    finally:
        for deadline in stopped:
            deadline.go_on()
