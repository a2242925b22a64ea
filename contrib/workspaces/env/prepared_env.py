"""PreparedEnv: environments with tasks that begin from a file system, which is prepared once in a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import ClassVar

from contrib.workspaces.contract import LOOPBACK, Network, UnpackedImage, WorkspaceLimits
from contrib.workspaces.env.base import WorkspaceEnv
from contrib.workspaces.env.bases import Bases
from contrib.workspaces.env.rows import DEFAULT_IMAGE
from contrib.workspaces.images.dockerfile import BuiltImage, built_from
from contrib.workspaces.images.resolve import find_image
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.workspace import Snapshot, Workspace
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

    shared: ClassVar = {"bases": "contrib.workspaces.env.bases:open_bases"}

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
    base = built_from(await asyncio.to_thread(find_image, image))
    workspace = await workspaces.open(base.files, limits=beginning.limits)
    try:
        await beginning.prepare(workspace, base)
        files = await workspace.snapshot()
    finally:
        await workspace.close()
    return BuiltImage(files=files, env=base.env, user=base.user)
