"""Deadlines that pause while the work waits in a queue.

The time limits of an episode apply to its own work. A call that waits for a free slot (a tool's concurrency, a rate
limit) or for the policy does so within `queued()`, which postpones all enclosing deadlines by that time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


class Deadline:
    """A time limit for some work, on a clock that can be paused. For one use.

    Example: ``await Deadline(30.0).run(work())``
    """

    __slots__ = ("_left", "_loop", "_pauses", "_since", "_timeout", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = self._left = seconds
        self._since: float | None = None  # when the clock was started; None while it is paused
        self._pauses = -1  # number of present pauses; -1: no work is running
        self._timeout: asyncio.Timeout | None = None

    @property
    def expired(self) -> bool:
        """Whether the time is used up; otherwise a TimeoutError came from the work itself."""
        return self._timeout is not None and self._timeout.expired()

    @property
    def used(self) -> float:
        """Seconds that the clock has run, up to its last pause or the end."""
        return self.seconds - self._left

    async def run(self, work: Awaitable[T]) -> T:
        """Await `work`. The timer is set at its first suspension: work that never suspends costs no timer.

        Raises:
            TimeoutError: when the time is used up; `expired` is then True, and the work is cancelled.
        """
        token = _enclosing.set((*_enclosing.get(), self))
        self._pauses = 0
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        try:
            steps = work.__await__()
            try:
                awaited = next(steps)
            except StopIteration as done:
                return done.value
            self._timeout = asyncio.Timeout(self._due())
            async with self._timeout:
                return await _Continuation(steps, awaited)
        finally:
            if self._since is not None:  # `_stop_clock`, without the cost of a call
                self._left -= self._loop.time() - self._since
                self._since = None
            self._pauses = -1  # a child task that still waits in a queue must not start the clock again
            _enclosing.reset(token)

    def pause(self) -> None:
        """Pause the clock until the matching `resume`; pauses may overlap."""
        if self._pauses < 0:
            return
        self._pauses += 1
        self._stop_clock()
        self._reschedule()

    def resume(self) -> None:
        if self._pauses > 0:
            self._pauses -= 1
            self._start_clock()
            self._reschedule()

    def _start_clock(self) -> None:
        if not self._pauses:
            self._since = self._loop.time()

    def _stop_clock(self) -> None:
        if self._since is not None:
            self._left -= self._loop.time() - self._since
            self._since = None

    def _due(self) -> float | None:
        return None if self._since is None else self._since + self._left

    def _reschedule(self) -> None:
        if self._timeout is not None and not self.expired:
            self._timeout.reschedule(self._due())


class _Continuation:
    """Awaits the rest of a coroutine that has already run up to its first suspension."""

    __slots__ = ("_awaited", "_steps")

    def __init__(self, steps: Generator[Any, Any, Any], awaited: Any) -> None:
        self._steps = steps
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._awaited
        try:
            while True:
                try:
                    sent = yield awaited
                except BaseException as error:
                    awaited = self._steps.throw(error)
                else:
                    awaited = self._steps.send(sent)
        except StopIteration as done:
            return done.value


_enclosing: ContextVar[tuple[Deadline, ...]] = ContextVar("deadlines", default=())


class queued:
    """Pauses all enclosing deadlines while the caller waits in a queue: for a slot, or for the policy.

    The wait needs a time limit of its own: no deadline of the episode ends it.

    Example: ``async with queued(): await slot.acquire()``
    """

    __slots__ = ("_deadlines",)

    async def __aenter__(self) -> None:
        self._deadlines = _enclosing.get()
        for deadline in self._deadlines:
            deadline.pause()

    async def __aexit__(self, *_: object) -> None:
        for deadline in self._deadlines:
            deadline.resume()
