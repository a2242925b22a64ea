"""Keeps slots warm ahead of demand: a slot is started before a request needs it.

A slot is whatever serves one request at a time and takes long to start. The owner says how to start and to end one.
There are always as many idle slots as busy ones, at least `warm` slots in all, and at most `most`. So the number of
requests at once can double before one has to wait for a start. A slot that was used up is replaced in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Generic, TypeVar

from forge_env.core.errors import SandboxError
from forge_env.utils.deadlines import queued

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStats:
    idle: int
    busy: int
    starting: int
    started: int
    """Slots started so far, with those that replaced another one."""
    waited_for_start: int
    """Requests so far that found no idle slot, and waited until one was started or given back."""


@dataclass(eq=False)
class WarmSlots(Generic[T]):
    """The slots of one sandbox. The owner limits the requests at once to at most `most`.

    Args:
        start: starts a slot and makes it warm. It is never cancelled.
        is_warm: whether a slot can serve a request at once. One that cannot is ended.
    """

    name: str
    _: KW_ONLY
    start: Callable[[], Awaitable[T]]
    """Starts a slot and makes it warm. It is never cancelled."""
    end: Callable[[T], None]
    is_warm: Callable[[T], bool]
    """Whether a slot can serve a request at once. One that cannot is ended."""
    warm: int
    most: int

    def __post_init__(self) -> None:
        self._at_once = len(os.sched_getaffinity(0))  # starts at a time: more would slow down the requests that run
        self._idle: list[T] = []
        self._busy = 0
        self._starting: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[T]] = deque()
        self._num_starts = self._num_waits = 0
        self._failure: Exception | None = None  # of a start that no request waited for
        self._is_closed = False

    @property
    def stats(self) -> SlotStats:
        counts = {"idle": len(self._idle), "busy": self._busy, "starting": len(self._starting)}
        return SlotStats(**counts, started=self._num_starts, waited_for_start=self._num_waits)

    async def fill(self) -> None:
        """Wait until `warm` slots are there and none is starting. Raises what the start of a slot raised."""
        self._failure = None
        self._end_cold()
        self._grow()
        while self._starting:
            await asyncio.wait(self._starting)
        if self._failure is not None:
            raise self._failure

    async def take(self) -> T:
        """Return a slot: the one used last, or the next one when none is idle, in the order of the requests.

        Always give it back. The wait is not the time of an episode.
        """
        if self._is_closed:
            raise self._closed_error()
        self._end_cold()
        if not self._idle:
            return await self._next()
        slot = self._idle.pop()
        self._busy += 1
        self._grow()
        return slot

    def give_back(self, slot: T) -> None:
        self._busy -= 1
        if self.is_warm(slot):
            self._offer(slot)
        else:
            self.end(slot)
        self._grow()

    def shut(self) -> None:
        """Give out no more slots, and end those that are idle; waiting requests get a SandboxError. Idempotent."""
        self._is_closed = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(self._closed_error())
        self._waiting.clear()
        while self._idle:
            self.end(self._idle.pop())

    async def close(self) -> None:
        """`shut`, and wait for slots that are being started: they end, too. Idempotent."""
        self.shut()
        while self._starting:
            await asyncio.wait(self._starting)

    async def _next(self) -> T:
        self._num_waits += 1
        waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._grow()
        try:
            async with queued():
                return await waiting
        except asyncio.CancelledError:
            if waiting.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiting)
            elif waiting.exception() is None:  # it got a slot just before it was cancelled
                self.give_back(waiting.result())
            raise

    def _end_cold(self) -> None:
        for slot in [slot for slot in self._idle if not self.is_warm(slot)]:
            self._idle.remove(slot)
            self.end(slot)

    def _offer(self, slot: T) -> None:
        """Hand a slot to the request that has waited longest, else keep it."""
        if self._is_closed:
            self.end(slot)
            return
        if (waiting := self._longest_waiting()) is None:
            self._idle.append(slot)
        else:
            self._busy += 1
            waiting.set_result(slot)

    def _longest_waiting(self) -> asyncio.Future[T] | None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # not cancelled
                return waiting
        return None

    def _grow(self) -> None:
        """Start slots in the background until there are enough for the present demand."""
        demand = self._busy + len(self._waiting)
        target = min(self.most, max(self.warm, 2 * demand))
        while (
            not self._is_closed
            and self._busy + len(self._idle) + len(self._starting) < target
            and len(self._starting) < self._at_once
        ):
            # In a context of its own: the deadlines of the request that runs now do not hold for the start.
            self._starting.add(asyncio.create_task(self._start_one(), context=contextvars.Context()))

    async def _start_one(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            slot = await self.start()
        except Exception as error:
            self._starting.discard(task)
            # One request is told, and another start is tried only if others wait: what fails may fail again.
            if (waiting := self._longest_waiting()) is None:
                self._failure = error
            else:
                waiting.set_exception(error)
                if self._waiting:
                    self._grow()
        else:
            self._starting.discard(task)
            self._num_starts += 1
            self._offer(slot)
            self._grow()

    def _closed_error(self) -> SandboxError:
        return SandboxError(f"the {self.name} sandbox is closed")
