"""How fast one host is called: requests per second and requests at once, over all episodes of a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forge_env.core.errors import ServiceError
from forge_env.utils.deadlines import queued

QUEUE_SECONDS = 600.0  # no deadline of an episode runs while it waits for a place, so the waiting has its own


class HostLimits:
    """The places of one host. Belongs to the event loop that first waits in it.

    Args:
        concurrency: requests at once.
        per_second: requests that start in a second, evenly spaced; None for any number.
    """

    def __init__(self, host: str, *, concurrency: int, per_second: float | None) -> None:
        self._host = host
        self._places = asyncio.Semaphore(concurrency)
        self._interval = 1 / per_second if per_second else 0.0
        self._next = 0.0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place; the clocks of the deadlines around stand still while it waits for one.

        Raises:
            ServiceError: when there was none for QUEUE_SECONDS.
        """
        try:
            async with queued(), asyncio.timeout(QUEUE_SECONDS):
                await self._take()
        except TimeoutError:
            raise ServiceError(f"no place for a request to {self._host} within {QUEUE_SECONDS:g} s") from None
        try:
            yield
        finally:
            self._places.release()

    async def _take(self) -> None:
        await self._places.acquire()
        try:
            await self._pace()
        except BaseException:
            self._places.release()
            raise

    async def _pace(self) -> None:
        """Wait for the next start; each one that waits has a start of its own."""
        now = asyncio.get_running_loop().time()
        start = max(now, self._next)
        self._next = start + self._interval
        if start > now:
            await asyncio.sleep(start - now)
