"""Limits the requests to one host: per second and at once, over all episodes of a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forge_env.core.errors import ServiceError
from forge_env.utils.deadlines import queued

QUEUE_SECONDS = 600.0  # limit of the wait for a slot, during which the deadlines of an episode are suspended


class HostLimits:
    """The slots for requests to one host, evenly spaced. Belongs to the event loop that first waits in it."""

    def __init__(self, host: str, *, concurrency: int, per_second: float | None) -> None:
        self._host = host
        self._slots = asyncio.Semaphore(concurrency)
        self._interval = 1 / per_second if per_second else 0.0
        self._next = 0.0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot; the deadlines around are suspended while it waits for one."""
        try:
            async with queued(), asyncio.timeout(QUEUE_SECONDS):
                await self._take()
        except TimeoutError:
            raise ServiceError(f"no place for a request to {self._host} within {QUEUE_SECONDS:g} s") from None
        try:
            yield
        finally:
            self._slots.release()

    async def _take(self) -> None:
        await self._slots.acquire()
        try:
            await self._pace()
        except BaseException:
            self._slots.release()
            raise

    async def _pace(self) -> None:
        """Wait for the next start time; each request gets a different one."""
        now = asyncio.get_running_loop().time()
        start = max(now, self._next)
        self._next = start + self._interval
        if start > now:
            await asyncio.sleep(start - now)
