"""The lane of an event loop: one thread that makes the calls of fast functions, one after another.

To wake a thread for one call costs many times as much as a fast call. So the calls of trusted functions that come in
one turn of the event loop are made by one thread in one go. They are not made on the loop itself: nothing in Python can
stop a blocking call or move it, and a loop that is held up ends no time limit. In a thread plain functions may do all
that they may do in a thread of their own: end at their time limit, be cancelled, call `asyncio.run`, wait for the loop.

A function is trusted after TRIAL_CALLS calls in a row of at most FAST_SECONDS, each in a thread of its own. All
instances of its class share the trust.

**The bound: a call that blocks holds up the other calls of the lane for at most 2 x LOOK_SECONDS, and the loop never.**
Every LOOK_SECONDS the loop looks if the lane is still at the same call. If it is, that call keeps the thread, and
another thread goes on with the other calls. The function is no longer trusted: its further calls, those that wait in
the lane too, have threads of their own. A call that ends after more than SLOW_SECONDS ends the trust, too.

The next trial is twice as long, so a function holds up others at most log2(n / TRIAL_CALLS) times in n calls. The trial
stays as it is if the trust lasted for LONG_TRUST trials, since on a busy machine a thread that waits for a CPU looks
like a slow call. Such a function holds up others once in LONG_TRUST x TRIAL_CALLS calls at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from forge_env.utils.workers import Batch, Call, start, taken

LOOK_SECONDS = 0.01
MAX_CALLS = 64
"""Calls of one batch: their callers go on when the batch has ended."""


class Lane:
    """The calls in threads of one event loop. Its methods are for the thread of that loop.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Call] = deque()
        self._batch: Batch | None = None
        self._is_beginning = False
        self._is_crowded = False
        self._is_watching = False
        self._seen: Call | None = None

    def add(self, call: Call) -> None:
        """Make a call: with others in one thread, if its function is trusted, or else in a thread of its own."""
        if not call.trust:
            self.start(call)
            return
        self._waiting.append(call)
        if self._batch is None and not self._is_crowded:
            self._begin()  # a call that comes alone waits for no others
        elif self._batch is None:
            self._begin_soon()

    def start(self, call: Call, *, in_new_thread: bool = False) -> None:
        """Make a call in a thread of its own."""
        start(Batch([call], self._end, self._loop), in_new_thread=in_new_thread)

    def _begin_soon(self) -> None:
        """Begin a batch after the tasks that are ready now, which may make more calls."""
        if not self._is_beginning:
            self._is_beginning = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_beginning = False
        if self._batch is not None:  # a call has begun it before the turn of this callback
            return
        calls: list[Call] = []
        while len(calls) < MAX_CALLS and (call := taken(self._waiting.popleft)):
            if call.trust:
                calls.append(call)
            else:  # it was slow since
                self.start(call)
        self._is_crowded = len(calls) > 1
        if calls:
            self._batch = Batch(calls, self._end, self._loop)
            start(self._batch)
            if not self._is_watching:
                self._watch()

    def _watch(self) -> None:
        self.look()
        self._is_watching = self._batch is not None or bool(self._waiting)
        if self._is_watching:
            self._loop.call_later(LOOK_SECONDS, self._watch)

    def look(self) -> None:
        """Go on in another thread if the lane is still at the call that it was at when it looked the last time."""
        batch, seen = self._batch, self._seen
        self._seen = batch.current if batch is not None else None
        if batch is not None and seen is not None and seen is self._seen and seen.is_running:
            self._end(batch)
            seen.trust.end()  # after the calls that ended before it have counted

    def _end(self, batch: Batch) -> None:
        """Tell the callers of the calls that have ended; the next batch has those that have not begun."""
        while call := taken(batch.ended.popleft):
            call.finish()
        while call := taken(batch.calls.pop):
            self._waiting.appendleft(call)
        if batch is self._batch:
            self._batch = None
        if self._waiting and self._batch is None:
            self._begin_soon()


def lane_of(loop: Any) -> Lane:
    """Return the lane of an event loop."""
    try:
        lane: Lane = loop._forge_env_lane
    except AttributeError:
        lane = loop._forge_env_lane = Lane(loop)
    return lane
