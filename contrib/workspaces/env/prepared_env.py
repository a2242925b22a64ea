"""PreparedEnv: environments with tasks that begin from a file system, which is prepared once in a process."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from contrib.workspaces.contract import LOOPBACK, Network, UnpackedImage, WorkspaceCapabilities, WorkspaceLimits
from contrib.workspaces.env.base import WorkspaceEnv
from contrib.workspaces.env.obstacles import task_faults
from contrib.workspaces.env.rows import DEFAULT_IMAGE
from contrib.workspaces.images.cache import in_thread
from contrib.workspaces.images.dockerfile import BuiltImage, built_from
from contrib.workspaces.images.resolve import find_image
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.snapshot import Snapshot
from contrib.workspaces.machines.workspace import Workspace
from contrib.workspaces.open import open_workspaces
from forge_env.utils.deadlines import queued


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What the workspaces of one task begin from."""

    image: str
    """As a row names it; "" is the environment's own."""
    key: Hashable
    """All that `prepare` depends on beside the image: tasks with equal ones share a base."""
    prepare: Callable[[Workspace, BuiltImage], Awaitable[object]]
    """Puts the task into a workspace of the image. It may outlive the episode that begins it, so it holds the task."""
    limits: WorkspaceLimits


class PreparedEnv(WorkspaceEnv):
    """A WorkspaceEnv that leases the beginning of its task; a subclass says in `beginning` what that is."""

    shared: ClassVar = {"bases": "contrib.workspaces.env.prepared_env:open_bases"}

    bases: Bases

    def __init__(self, *, use_tools: bool = True, image: str = DEFAULT_IMAGE) -> None:
        """Make an instance.

        Args:
            use_tools: whether the model has tools.
            image: of the tasks that name none: host, host:PACKAGES, the folder of a root file system.
        """
        super().__init__(use_tools=use_tools)
        self._default_image = image
        self._leases = AsyncExitStack()
        self._base: BuiltImage | None = None

    @property
    def workspaces(self) -> Workspaces:  # type: ignore[override]
        return self.bases.workspaces

    def beginning(self) -> Beginning:
        raise NotImplementedError(f"{type(self).__name__} prepares its tasks: define beginning()")

    async def close(self) -> None:
        await super().close()
        self._base = None
        await self._leases.aclose()

    async def open_fresh(
        self, image: UnpackedImage | Snapshot | None = None, *, network: Network | None = None
    ) -> Workspace:
        beginning = self.beginning()
        if self._base is None:
            name = beginning.image or self._default_image
            self._base = await self._leases.enter_async_context(
                self.bases.lease((name, beginning.key), lambda: _make(self.workspaces, name, beginning))
            )
        async with queued():
            files = self._base.files if image is None else image
            return await self.workspaces.open(files, limits=beginning.limits, network=network or LOOPBACK)


async def _make(workspaces: Workspaces, image: str, beginning: Beginning) -> BuiltImage:
    base = built_from(await in_thread(find_image, image))
    workspace = await workspaces.open(base.files, limits=beginning.limits)
    try:
        await beginning.prepare(workspace, base)
        files = await workspace.snapshot()
    finally:
        await workspace.close()
    return BuiltImage(files=files, env=base.env, user=base.user)


MOST_IDLE = 16
"""Bases that are kept although no episode uses them: what was written into a base stays in memory."""


@dataclass(slots=True)
class _Base:
    making: asyncio.Task[BuiltImage]
    users: int = 0

    @property
    def image(self) -> BuiltImage | None:
        """None while it is made, and if it could not be made."""
        is_made = self.making.done() and not self.making.cancelled() and self.making.exception() is None
        return self.making.result() if is_made else None

    @property
    def is_lost(self) -> bool:
        """Whether no workspace can begin from it: it could not be made, or its files are lost."""
        return self.making.done() and (self.image is None or self.image.is_lost)

    async def close(self) -> None:
        if self.image is not None:
            await self.image.close()


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
        """Give a base, which stays open during the block; `make` prepares it if it is not there, or is lost."""
        base = self._bases.get(key)
        if base is None or base.is_lost:
            stale, base = base, _Base(asyncio.create_task(make()))
            self._bases[key] = base
            if stale is not None and not stale.users:
                await stale.close()
        base.users += 1
        try:
            with task_faults():
                async with queued():  # no time of the model's
                    image = await asyncio.shield(base.making)
            yield image
        finally:
            base.users -= 1
            if self._bases.get(key) is base and base.is_lost:
                del self._bases[key]
            if self._bases.get(key) is base:
                self._bases.move_to_end(key)
            elif not base.users:
                await base.close()
            await self._close_idle()

    async def close(self) -> None:
        bases, self._bases = list(self._bases.values()), OrderedDict()
        for base in bases:
            base.making.cancel()
        await asyncio.gather(*(base.making for base in bases), return_exceptions=True)
        for base in bases:
            await base.close()

    async def _close_idle(self) -> None:
        idle = [key for key, base in self._bases.items() if not base.users and base.making.done()]
        for key in idle[: max(len(idle) - self._most_idle, 0)]:
            await self._bases.pop(key).close()


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
