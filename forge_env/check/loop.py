"""The check of the event loop: no instance stalls the others. It takes the latencies on its way."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from forge_env.check.moves import Move
from forge_env.check.subject import Failed, Subject, by_hand, instance
from forge_env.core.errors import ForgeError
from forge_env.core.types import Task

STALL_SECONDS = 0.25
BEAT_SECONDS = 0.005


class Heartbeat:
    """Measures for how long the event loop could not run anything else."""

    def __init__(self) -> None:
        self.worst = 0.0
        """Seconds, of the longest pause so far."""

    async def __aenter__(self) -> Heartbeat:
        self._task = asyncio.create_task(self._beat())
        await asyncio.sleep(0)  # so that the first beat begins before what is measured
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.settle()
        self._task.cancel()
        await asyncio.wait({self._task})

    async def settle(self) -> None:
        """Let the pause at hand be counted."""
        await asyncio.sleep(2 * BEAT_SECONDS)

    async def _beat(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(BEAT_SECONDS)
            self.worst = max(self.worst, time.perf_counter() - started - BEAT_SECONDS)


async def event_loop(subject: Subject) -> str:
    """No constructor, `reset` or `step` holds the event loop for long.

    A busy machine may hold it as well, and so may a first import: only what happens twice is a finding.
    """
    worst, where = await _worst(subject)
    if worst > STALL_SECONDS:
        worst, where = min((worst, where), await _worst(subject))
    if worst > STALL_SECONDS:
        raise Failed(
            f"{where} holds the event loop for {worst:.2f} s, and all other episodes with it: await what it waits for, "
            "or write it as a plain def, which runs in a thread"
        )
    return f"the event loop was held for {worst * 1000:.0f} ms at most"


async def _worst(subject: Subject) -> tuple[float, str]:
    found = [await _watched(subject, task, subject.moves[0]) for task in subject.tasks]
    return max(found)


async def _watched(subject: Subject, task: Task, move: Move) -> tuple[float, str]:
    """The longest stall of one episode, and what caused it."""
    pauses = []
    started = time.perf_counter()
    async with instance(subject) as env:
        pauses.append((time.perf_counter() - started, "the constructor"))
        async with Heartbeat() as heart, aclosing(by_hand(env, task, subject.seed, move)) as calls:
            try:
                async for seconds, _ in calls:
                    is_reset = len(pauses) == 1
                    (subject.resets if is_reset else subject.steps).append(seconds)
                    await heart.settle()
                    pauses.append((heart.worst, "reset()" if is_reset else "step()"))
                    heart.worst = 0.0
            except ForgeError:  # the finding of another check
                pass
    return max(pauses)
