"""Deadlines that pause while the work waits in a queue.

The time limits of an episode apply to its own work. A call that waits for a free slot (a tool's concurrency, a rate
limit) or for the policy does so within `queued()`, which postpones all enclosing deadlines by that time.

A step has several deadlines, and hardly any expires. So an event loop has one timer for all: one for each takes longer
than the rest of a step.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
_NEVER = float("inf")


class Deadline:
    """A time limit for some work, on a clock that can be paused. For one use, within one task.

    Example::

        with Deadline(30.0):
            await work()
    """

    __slots__ = (
        *("_cancelling", "_clock", "_due", "_outer", "_pauses", "_rest", "_since", "_task", "_token"),
        *("has_expired", "seconds"),
    )

    def __init__(self, seconds: float) -> None:
        self.seconds = self._rest = seconds
        self.has_expired = False
        """Whether the time is used up; otherwise a TimeoutError came from the work itself."""
        self._pauses = -1  # number of present pauses; -1: no work is running
        self._since: float | None = None  # when the clock was started; None while it is paused

    @property
    def seconds_used(self) -> float:
        """Seconds that the clock has run, up to its last pause or the end."""
        return self.seconds - self._rest

    @property
    def remaining_s(self) -> float:
        """Seconds until it expires; not above 0 once it has."""
        return self._rest if self._since is None else self._due - self._clock.time()

    def spend(self, seconds: float) -> None:
        """Take seconds off, as if the clock had run for them."""
        is_running = self._since is not None
        self._stop()
        self._rest -= seconds
        if is_running:
            self._start()

    async def run(self, work: Awaitable[T]) -> T:
        with self:
            return await work

    def __enter__(self) -> None:
        loop, clock = asyncio.get_running_loop(), _thread.clock
        if clock is None or clock.loop is not loop:
            clock = _thread.clock = _Clock(loop)
        task = asyncio.current_task(loop)
        assert task is not None, "a deadline cancels the task that it is used in"
        self._task, self._cancelling, self._clock = task, task.cancelling(), clock
        self._outer = _innermost.get()
        self._token: Token[Deadline | None] = _innermost.set(self)
        self._pauses = 0
        self._start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop()
        self._pauses = -1  # a child task that still waits in a queue must not start the clock again
        _innermost.reset(self._token)
        # As in `asyncio.Timeout`: a cancellation by somebody else goes on.
        if self.has_expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def pause(self) -> None:
        """Pause the clock until the matching `resume`; pauses may overlap."""
        if self._pauses >= 0:
            self._pauses += 1
            self._stop()

    def resume(self) -> None:
        if self._pauses > 0:
            self._pauses -= 1
            if not self._pauses:
                self._start()

    def _start(self) -> None:
        clock = self._clock
        self._since = since = clock.time()
        self._due = due = since + self._rest
        clock.running.add(self)
        if due < clock.at:
            clock.set_timer(due)

    def _stop(self) -> None:
        if self._since is not None:
            self._rest -= self._clock.time() - self._since
            self._since = None
            self._clock.running.discard(self)


class _Clock:
    """The time of an event loop, and its timer for all deadlines that run in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # What the loops of asyncio call; a loop may have a clock of its own.
        self.time = time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
        self.running: set[Deadline] = set()
        self.at = _NEVER
        """When the timer fires: not after the first deadline. The one that it was set for may have ended since."""
        self._timer: asyncio.TimerHandle | None = None

    def set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.at, self._timer = at, self.loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self.at, self._timer, now, first = _NEVER, None, self.time(), _NEVER
        for deadline in self.running:
            if deadline.has_expired:
                continue
            due = deadline._due
            if due <= now:
                deadline.has_expired = True
                deadline._task.cancel()
            else:
                first = min(first, due)
        if first < _NEVER:
            self.set_timer(first)


class _Thread(threading.local):
    clock: _Clock | None = None


_thread = _Thread()
_innermost: ContextVar[Deadline | None] = ContextVar("deadline", default=None)
"""The innermost of the deadlines that the current code runs within."""


def seconds_left() -> float:
    """Return the time until the first of the enclosing deadlines expires; infinity if there is none."""
    remaining_s, deadline = _NEVER, _innermost.get()
    while deadline is not None:
        remaining_s = min(remaining_s, deadline.remaining_s)
        deadline = deadline._outer
    return remaining_s


def has_expired() -> bool:
    """Whether one of the enclosing deadlines has expired: it has cancelled the current work."""
    deadline = _innermost.get()
    while deadline is not None and not deadline.has_expired:
        deadline = deadline._outer
    return deadline is not None


def spend(seconds: float) -> None:
    """Take time off all enclosing deadlines: work was done elsewhere while they were paused."""
    deadline = _innermost.get()
    while deadline is not None:
        deadline.spend(seconds)
        deadline = deadline._outer


class queued:
    """Pauses all enclosing deadlines while the caller waits in a queue: for a slot, or for the policy.

    The wait needs a time limit of its own: no deadline of the episode ends it.

    Example: ``async with queued(): await slot.acquire()``
    """

    __slots__ = ("_innermost",)

    async def __aenter__(self) -> None:
        deadline = self._innermost = _innermost.get()
        while deadline is not None:
            deadline.pause()
            deadline = deadline._outer

    async def __aexit__(self, *_: object) -> None:
        deadline = self._innermost
        while deadline is not None:
            deadline.resume()
            deadline = deadline._outer
