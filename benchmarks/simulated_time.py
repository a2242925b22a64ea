"""An asyncio event loop whose clock jumps: hours of a simulated run pass in seconds of a real one, and nothing sleeps.

asyncio asks its selector to wait until the next timer is due. This selector moves the clock there instead, and on the
way lets everything happen that is planned in a simulated world. So the coroutines of a run, `asyncio.sleep` and
`asyncio.timeout` among them, are as they always are, and see simulated seconds.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(RuntimeError):
    """Every coroutine waits, and nothing is going to happen: in real time this would last for ever."""


class World:
    """What is going to happen, in order of time; of two events at one time, the one that was planned first."""

    def __init__(self) -> None:
        self.now = 0.0
        """Simulated seconds since the start."""
        self.cpu_seconds = 0.0
        """Real seconds of this thread that the world itself has cost; the rest are those of the coroutines."""
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._woken = False

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Plan an event."""
        self._count += 1
        heapq.heappush(self._planned, (self.now + seconds, self._count, event))

    def answer(self, waiting: asyncio.Future[T], value: T) -> None:
        """Let a coroutine go on; one that was cancelled needs no answer."""
        if not waiting.done():
            waiting.set_result(value)
            self._woken = True

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count what the block costs as the world's, where a coroutine calls it."""
        started = time.thread_time()
        try:
            yield
        finally:
            self.cpu_seconds += time.thread_time() - started

    def pass_until(self, limit: float) -> None:
        """Let events happen until the limit, or until a coroutine has something to do.

        Raises:
            Stuck: when there is neither.
        """
        with self.at_work():
            self._woken = False
            while not self._woken:
                if not self._planned or self._planned[0][0] > limit:
                    if limit == math.inf:
                        raise Stuck(f"at {self.now:g} s everything waits, and nothing is planned")
                    self.now = limit
                    return
                self.now, _, event = heapq.heappop(self._planned)
                event()


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time. It serves one thread, and no files and no sockets."""

    def __init__(self, world: World) -> None:
        self._world = world
        super().__init__(_NoWaiting(world))

    def time(self) -> float:
        return self._world.now


class _NoWaiting(selectors.SelectSelector):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._world.pass_until(math.inf if timeout is None else self._world.now + timeout)
        return []


def run(world: World, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in simulated time, as `asyncio.run` does in real time."""
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(world)) as runner:
        return runner.run(work)
