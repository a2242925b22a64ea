"""The check of the event loop: no instance blocks it for long. It also measures the latencies of `reset` and `step`."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from contrib.check.context import CheckContext, CheckFailed
from contrib.check.direct_calls import fresh_instance, play_directly
from contrib.check.strategies import Strategy
from forge_env.core.errors import ForgeError
from forge_env.core.types import Task

MAX_STALL_SECONDS = 0.25
BEAT_SECONDS = 0.005


class Heartbeat:
    longest = 0.0
    """Seconds of the longest block since it was last set to 0."""

    async def __aenter__(self) -> Heartbeat:
        self._task = asyncio.create_task(self._beat())
        await asyncio.sleep(0)  # let the first beat begin before the measured code runs
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.settle()
        self._task.cancel()
        await asyncio.wait({self._task})

    async def settle(self) -> None:
        """Wait until the current block has been measured."""
        await asyncio.sleep(2 * BEAT_SECONDS)

    async def _beat(self) -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(BEAT_SECONDS)
            self.longest = max(self.longest, time.perf_counter() - start - BEAT_SECONDS)


async def event_loop(context: CheckContext) -> str:
    """No constructor, `reset` or `step` blocks the event loop for long.

    A busy machine or a first import may block it too, so only what happens in two measurements fails the check.
    """
    seconds, where = await _longest_stall(context)
    if seconds > MAX_STALL_SECONDS:
        seconds, where = min((seconds, where), await _longest_stall(context))
    if seconds > MAX_STALL_SECONDS:
        raise CheckFailed(
            f"{where} blocks the event loop for {seconds:.2f} s, and all other episodes with it: await what it waits "
            "for, or write it as a plain def, which runs in a thread"
        )
    return f"the event loop was blocked for {seconds * 1000:.0f} ms at most"


async def _longest_stall(context: CheckContext) -> tuple[float, str]:
    return max([await _episode_stall(context, task, context.strategies[0]) for task in context.tasks])


async def _episode_stall(context: CheckContext, task: Task, strategy: Strategy) -> tuple[float, str]:
    stalls = []
    start = time.perf_counter()
    async with fresh_instance(context) as env:
        stalls.append((time.perf_counter() - start, "the constructor"))
        async with Heartbeat() as heart, aclosing(play_directly(env, task, context.seed, strategy)) as calls:
            try:
                async for seconds, _ in calls:
                    is_reset = len(stalls) == 1
                    (context.reset_seconds if is_reset else context.step_seconds).append(seconds)
                    await heart.settle()
                    stalls.append((heart.longest, "reset()" if is_reset else "step()"))
                    heart.longest = 0.0
            except ForgeError:  # another check reports it
                pass
    return max(stalls)
