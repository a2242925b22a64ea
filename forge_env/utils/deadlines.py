"""Deadlines that pause while the work waits in a queue.

The time limits of an episode apply to its own work. A call that waits for a free slot (a tool's concurrency, a rate
limit) or for the policy does so within `queued()`, which postpones all enclosing deadlines by that time.

A step of an environment has several deadlines, and hardly any expires. So a deadline has no timer of its own: the event
loop has one timer for all, at the time of the earliest one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
_NEVER = float("inf")


class Place:
    """The current task, and the timer of its event loop. Looking them up costs as much as the rest of a deadline."""

    __slots__ = ("task", "timer")

    def __init__(self) -> None:
        loop: Any = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None, "a deadline cancels the task that it is used in"
        self.task = task
        try:
            timer: _Timer = loop._forge_env_timer
        except AttributeError:
            timer = loop._forge_env_timer = _Timer(loop)
        self.timer = timer


class Deadline:
    """A time limit for some work, on a clock that can be paused. For one use, within one task.

    Args:
        place: of the task, for a task that uses many deadlines; looked up by default.

    Example::

        with Deadline(30.0):
            await work()
    """

    __slots__ = (
        *("_cancelling", "_due", "_left", "_outer", "_pauses", "_place", "_since", "_token"),
        *("expired", "seconds"),
    )

    def __init__(self, seconds: float, place: Place | None = None) -> None:
        self.seconds = self._left = seconds
        self._place: Place = place  # type: ignore[assignment]  # one that is None is looked up on entry
        self.expired = False
        """Whether the time is used up; otherwise a TimeoutError came from the work itself."""
        self._pauses = -1  # number of present pauses; -1: no work is running

    @property
    def used(self) -> float:
        """Seconds that the clock has run, up to its last pause or the end."""
        return self.seconds - self._left

    @property
    def left(self) -> float:
        """Seconds until it expires; not above 0 once it has."""
        return self._left if self._since is None else self._due - self._place.timer.time()

    def spend(self, seconds: float) -> None:
        """Take seconds off, as if the clock had run for them."""
        self._left -= seconds
        if self._since is not None:
            self._due -= seconds
            if self._due < self._place.timer.at:
                self._place.timer.move(self._due)

    async def run(self, work: Awaitable[T]) -> T:
        """Await `work` within this deadline."""
        with self:
            return await work

    def __enter__(self) -> None:
        outer = self._outer = _innermost.get()
        place = self._place
        if place is None:
            # The enclosing deadline may be a parent task's.
            is_same_task = outer is not None and outer._place.task is asyncio.current_task()
            place = self._place = outer._place if is_same_task else Place()
        self._cancelling = place.task.cancelling()
        self._token: Token[Deadline | None] = _innermost.set(self)
        self._pauses = 0
        timer = place.timer
        since = timer.time()
        self._since: float | None = since  # when the clock was started; None while it is paused
        self._due = due = since + self._left
        timer.deadlines.add(self)
        if due < timer.at:
            timer.move(due)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        timer = self._place.timer
        timer.deadlines.discard(self)
        if self._since is not None:
            self._left -= timer.time() - self._since
            self._since = None
        self._pauses = -1  # a child task that still waits in a queue must not start the clock again
        _innermost.reset(self._token)
        # As in `asyncio.Timeout`: a cancellation by somebody else goes on.
        if self.expired and self._place.task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def pause(self) -> None:
        """Pause the clock until the matching `resume`; pauses may overlap."""
        if self._pauses < 0:
            return
        self._pauses += 1
        if self._since is not None:
            self._left -= self._place.timer.time() - self._since
            self._since, self._due = None, _NEVER

    def resume(self) -> None:
        if self._pauses <= 0:
            return
        self._pauses -= 1
        if not self._pauses:
            timer = self._place.timer
            self._since = timer.time()
            self._due = self._since + self._left
            if self._due < timer.at:
                timer.move(self._due)


class _Timer:
    """The timer of an event loop for all deadlines of its tasks."""

    __slots__ = ("_handle", "_loop", "at", "deadlines", "time")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        # What the loops of asyncio call; a loop may have a clock of its own.
        self.time = time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
        self.at = _NEVER
        """When it fires: not after the earliest deadline. The one that it was set for may have ended since."""
        self.deadlines: set[Deadline] = set()
        """The deadlines of running work."""

    def move(self, at: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self.at, self._handle = at, self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self.at, self._handle = _NEVER, None
        now, earliest = self.time(), _NEVER
        for deadline in self.deadlines:
            if deadline.expired:
                continue
            if deadline._due <= now:
                deadline.expired = True
                deadline._place.task.cancel()
            elif deadline._due < earliest:
                earliest = deadline._due
        if earliest < _NEVER:
            self.move(earliest)


_innermost: ContextVar[Deadline | None] = ContextVar("deadline", default=None)
"""The innermost of the deadlines that the current code runs within."""


def seconds_left() -> float:
    """Return the time until the first of the enclosing deadlines expires; infinity if there is none."""
    left, deadline = _NEVER, _innermost.get()
    while deadline is not None:
        left = min(left, deadline.left)
        deadline = deadline._outer
    return left


def has_expired() -> bool:
    """Whether one of the enclosing deadlines has expired: it has cancelled the current work."""
    deadline = _innermost.get()
    while deadline is not None and not deadline.expired:
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
