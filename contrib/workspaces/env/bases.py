"""The file systems that episodes begin from: each is prepared once in a process, and shared by those at work on it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from contrib.workspaces.contract import WorkspaceCapabilities
from contrib.workspaces.env.obstacles import task_faults
from contrib.workspaces.images.dockerfile import BuiltImage
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.open import open_workspaces
from forge_env.utils.deadlines import queued

MOST_IDLE = 16
"""Bases that are kept although no episode uses them: what was written into a base stays in memory."""


@dataclass(slots=True)
class _Base:
    making: asyncio.Task[BuiltImage]
    users: int = 0


class Bases:
    """Prepared images by their keys. From `open_bases`.

    Args:
        most_idle: number of unused bases that are kept, the last used ones.
    """

    def __init__(self, workspaces: Workspaces, *, most_idle: int = MOST_IDLE) -> None:
        self.workspaces = workspaces
        self._most_idle = most_idle
        self._bases: OrderedDict[Hashable, _Base] = OrderedDict()

    @property
    def capabilities(self) -> WorkspaceCapabilities:
        return self.workspaces.capabilities

    @asynccontextmanager
    async def lease(
        self, key: Hashable, make: Callable[[], Coroutine[Any, Any, BuiltImage]]
    ) -> AsyncIterator[BuiltImage]:
        """Give a base, which stays open during the block; `make` prepares it if it is not there."""
        if key not in self._bases:
            self._bases[key] = _Base(asyncio.create_task(make()))
        base = self._bases[key]
        base.users += 1
        try:
            with task_faults():
                async with queued():  # no time of the model's
                    image = await asyncio.shield(base.making)
            yield image
        finally:
            base.users -= 1
            if self._bases.get(key) is base:
                self._bases.move_to_end(key)
                if base.making.done() and (base.making.cancelled() or base.making.exception()):
                    del self._bases[key]
            await self._close_idle()

    async def close(self) -> None:
        bases, self._bases = list(self._bases.values()), OrderedDict()
        for base in bases:
            base.making.cancel()
        done = await asyncio.gather(*(base.making for base in bases), return_exceptions=True)
        for image in done:
            if isinstance(image, BuiltImage):
                await image.close()

    async def _close_idle(self) -> None:
        idle = [key for key, base in self._bases.items() if not base.users and base.making.done()]
        for key in idle[: max(len(idle) - self._most_idle, 0)]:
            base = self._bases.pop(key)
            await base.making.result().close()


@asynccontextmanager
async def open_bases(backend: str = "auto") -> AsyncIterator[Bases]:
    """Open a backend of workspaces and the bases that are prepared with it.

    Args:
        backend: of `contrib.workspaces.open.open_workspaces`.
    """
    async with open_workspaces(backend) as workspaces:
        bases = Bases(workspaces)
        try:
            yield bases
        finally:
            await bases.close()
