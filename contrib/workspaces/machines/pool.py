"""Warm workspaces of one image: started ahead of demand, each for one use, with a bound on starts per second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import UserError
from forge_env.utils.deadlines import queued
from sandboxes.host.warm_slots import SlotStats, WarmSlots


class Pool:
    """Warm workspaces of one image: one that is taken is new, and is closed at the end. From `Workspaces.open_pool`.

    Args: start: starts a workspace.
    """

    def __init__(self, start: Callable[[], Awaitable[Workspace]], *, warm: int, most: int, starts_per_s: float) -> None:
        if not 0 <= warm <= most or most < 1:
            raise UserError(f"warm is {warm} and most is {most}: warm must be from 0 to most, and most at least 1.")
        if starts_per_s <= 0:
            raise UserError(f"starts_per_s is {starts_per_s:g}; it must be above 0.")
        self._start = start
        self._pace = _Pace(starts_per_s, burst=max(1, warm))
        self._in_use: set[Workspace] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(most)
        self._slots: WarmSlots[Workspace] = WarmSlots(
            "workspace",
            start=self._start_one,
            end=self._end,
            is_warm=lambda w: w not in self._in_use and w.alive,
            warm=warm,
            most=most,
        )

    @property
    def stats(self) -> SlotStats:
        return self._slots.stats

    async def fill(self) -> None:
        await self._slots.fill()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Workspace]:
        """Return a new workspace, already started if one is warm. Waits while `most` are in use.

        Raises:
            SandboxError: the pool is closed, or a workspace could not be started.
        """
        async with queued():
            await self._places.acquire()
        try:
            workspace = await self._slots.take()
            self._in_use.add(workspace)
            try:
                yield workspace
            finally:
                try:
                    await asyncio.shield(workspace.close())
                finally:
                    self._slots.give_back(workspace)
        finally:
            self._places.release()

    async def close(self) -> None:
        """Close every idle workspace; those in use are closed when they are given back. Idempotent."""
        await self._slots.close()
        while self._closing:
            await asyncio.wait(self._closing)

    async def _start_one(self) -> Workspace:
        await self._pace.wait()
        return await self._start()

    def _end(self, workspace: Workspace) -> None:
        self._in_use.discard(workspace)
        task = asyncio.create_task(workspace.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Pace:
    """Lets `burst` pass at once, and then `per_s` per second."""

    def __init__(self, per_s: float, *, burst: int) -> None:
        self._step, self._burst = 1.0 / per_s, burst
        self._free_at = 0.0
        """When the bucket is empty again."""

    async def wait(self) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - self._burst * self._step) + self._step
        if (delay := self._free_at - now) > 0:
            await asyncio.sleep(delay)
