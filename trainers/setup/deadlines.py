"""How long the parts of a run may take: what moves bytes by their number, and what waits by whether anything moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from forge_env.core.errors import ServiceError
from trainers.config import DeadlinesConfig, RunConfig

MIB = 2**20
_WEIGHTS = 4  # bytes of a parameter, at most: weights are kept in float32, and published in the engine's dtype
_CHECKPOINT = 12  # with Adam's two moments
_LOOKS = 8  # at whether anything has moved, within the time in which something has to


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines of what moves the weights of a model, in seconds.

    Each is `deadlines.base_seconds`, and the time that the bytes take at `deadlines.least_mib_per_second`.
    """

    settings: DeadlinesConfig
    parameters: int
    """Of the model; 0 leaves the base."""

    @property
    def base(self) -> float:
        """For what moves few bytes."""
        return self._seconds(0)

    @property
    def weights(self) -> float:
        """For the weights once: to load a model, to publish, pull, keep or export it."""
        return self._seconds(_WEIGHTS)

    @property
    def checkpoint(self) -> float:
        """For a checkpoint, and for the one before it, which may still be in writing."""
        return self._seconds(2 * _CHECKPOINT)

    def _seconds(self, size: float) -> float:
        return self.settings.base_seconds + self.parameters * size / (self.settings.least_mib_per_second * MIB)


def least_patience(config: RunConfig) -> float:
    """Seconds in which a run may legally stand still: no group comes back, no engine computes, no episode ends.

    The longest that an episode does without the engine is the end of a step, its scoring, the closing, and the reset of
    the next attempt. An engine that hangs has to be found before that.
    """
    env = config.env
    return max(3 * env.step_seconds + env.scoring_seconds, 1.25 * config.deadlines.stall_seconds) + 60.0


def patience(config: RunConfig) -> float:
    """Seconds after which a run in which nothing moves has failed: `training.step_seconds`, or `least_patience`."""
    return max(config.training.step_seconds, least_patience(config))


@asynccontextmanager
async def while_moving(
    place: Callable[[], Awaitable[object]], *, seconds: float, stuck: Callable[[], str]
) -> AsyncIterator[None]:
    """Around work that has no deadline: it goes on as long as something moves.

    Args:
        place: how far things have come; two that are equal say that nothing has moved in between.
        seconds: in which something has to.
        stuck: what is said otherwise.

    Raises:
        ServiceError: nothing has moved for so long; the work is cancelled.
    """
    try:
        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(_end_when_stuck(limit, place, seconds))
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not limit.expired():
            raise
        raise ServiceError(stuck()) from None


async def _end_when_stuck(limit: asyncio.Timeout, place: Callable[[], Awaitable[object]], seconds: float) -> None:
    before: object = object()
    still = 0
    while still < _LOOKS:
        await asyncio.sleep(seconds / _LOOKS)
        now = await place()
        still = still + 1 if now == before else 0
        before = now
    limit.reschedule(asyncio.get_running_loop().time())
