"""Waiting without a deadline, for as long as something moves.

Progress is looked at a few times within the allowed seconds, and looks are counted instead of seconds: if the whole
process was stopped for a time, the time counts as one look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from forge_env.core.errors import ServiceError

LOOKS = 8
Progress = Callable[[], Awaitable[object]]
"""Returns a value that changes with progress; two equal values mean no progress between them."""


async def until_stalled(progress: Progress, seconds: float) -> None:
    before: object = object()
    still = 0
    while still < LOOKS:
        await asyncio.sleep(seconds / LOOKS)
        now = await progress()
        still = still + 1 if now == before else 0
        before = now


@asynccontextmanager
async def fail_if_stalled(progress: Progress, *, seconds: float, sentence: Callable[[], str]) -> AsyncIterator[None]:
    """Run a block that has no deadline for as long as there is progress.

    Args:
        seconds: without progress after which the block is cancelled.
    """

    async def cancel(limit: asyncio.Timeout) -> None:
        await until_stalled(progress, seconds)
        limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(cancel(limit))
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not limit.expired():
            raise
        raise ServiceError(sentence()) from None
