"""Where a workspace begins and what runs for it: its origin, snapshots, and the box that has started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.machines.box import Box
from contrib.workspaces.machines.command import Watched
from contrib.workspaces.machines.proxy import Service
from forge_env.core.errors import SandboxError
from sandboxes.host.cgroup_slots import SlotGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a workspace is opened from: an image, and layers above it that the backend keeps while they are held."""

    image: UnpackedImage
    layers: tuple[Hashable, ...] = ()
    """From the bottom up; what they are is the backend's matter."""
    family: int = 0
    """Workspaces of one family share layers, and the user namespace that owns them. 0: none yet."""


class Snapshot:
    """The files of a workspace at one moment, to open further workspaces from (`Workspaces.open`).

    It holds what was written, until it is closed and every workspace opened from it is closed, too.

    Args:
        release: lets go of the snapshot's resources.
        is_lost: whether the backend has lost its files.
    """

    def __init__(
        self, backend: object, origin: Origin, release: Callable[[], None], is_lost: Callable[[], bool]
    ) -> None:
        self.backend, self.origin = backend, origin
        self._release: Callable[[], None] | None = release
        self._is_lost = is_lost

    @property
    def image(self) -> UnpackedImage:
        """The image below it."""
        return self.origin.image

    @property
    def is_closed(self) -> bool:
        return self._release is None

    @property
    def is_lost(self) -> bool:
        """Whether its files went with the server that held them: take another one."""
        return self._is_lost()

    async def close(self) -> None:
        """Idempotent. Workspaces that were opened from it go on."""
        release, self._release = self._release, None
        if release is not None:
            release()


class Started:
    """A running box with what counts its resources.

    Args:
        group: counts its resources; None where nothing does.
        free: called once, when every process of the box has ended.
    """

    counters: Watched
    """Set when the box has got its order."""

    def __init__(self, box: Box, group: SlotGroup | None, free: Callable[[], None] = lambda: None) -> None:
        self.box, self.group, self._free = box, group, free
        self.proxies: list[Service] = []

    async def stop(self, *, keep: int = 0) -> None:
        """End the box, also if the caller is cancelled meanwhile.

        Raises SandboxError if its files should become the layer `keep`, and have not.
        """
        await asyncio.shield(asyncio.ensure_future(self._stop(keep)))

    async def _stop(self, keep: int) -> None:
        for proxy in self.proxies:
            await proxy.close()
        end = await self.box.end(keep=keep)
        self._free()
        if keep and end.kept != keep:
            reason = end.failure or "the workspace had ended before"
            raise SandboxError(f"the files of a workspace could not be kept: {reason}")
