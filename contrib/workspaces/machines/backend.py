"""What all backends of workspaces have in common. A backend starts a pid 1 of ours, and says what it has done.

A new backend is a subclass of `Workspaces` with five methods, and a function that opens it and tests that it
isolates: `namespace.py`, and contrib/docker/workspace.py.
"""

from __future__ import annotations

import errno
import os
import platform
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from contrib.workspaces.contract import (
    DEFAULT_WORKSPACE_LIMITS,
    LOOPBACK,
    Network,
    NetworkMode,
    UnpackedImage,
    WorkspaceCapabilities,
    WorkspaceLimits,
)
from contrib.workspaces.images.cache import ImagesInUse, in_use
from contrib.workspaces.machines.box import order_of
from contrib.workspaces.machines.command import Watched
from contrib.workspaces.machines.pool import Pool
from contrib.workspaces.machines.proxy import PORT, allowlist_of, mirror_variables, open_proxies
from contrib.workspaces.machines.snapshot import Origin, Snapshot, Started
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import SandboxError, UserError

_PROXY_ENVIRONMENT = {
    name: value
    for variable, value in (
        ("HTTP_PROXY", f"http://127.0.0.1:{PORT}"),
        ("HTTPS_PROXY", f"http://127.0.0.1:{PORT}"),
        ("NO_PROXY", "localhost,127.0.0.1,0.0.0.0,::1,workspace"),
    )
    for name in (variable, variable.lower())
}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "arm64/v8": "aarch64"}


class Workspaces(ABC):
    """An open backend, which starts workspaces in milliseconds. From `contrib.workspaces.open.open_workspaces`.

    A subclass calls `_hold` for every origin that it starts a box from, and `_begin` for every box.

    Args: capabilities: until the self-test has measured them.
    """

    def __init__(self, capabilities: WorkspaceCapabilities) -> None:
        self.capabilities = capabilities
        self._layers: Counter[Hashable] = Counter()
        """Layer -> snapshots and workspaces that need it."""
        self._families: Counter[int] = Counter()
        self._images = ImagesInUse()
        self._open: set[Workspace] = set()
        self._pools: set[Pool] = set()
        self._is_closed = False

    @abstractmethod
    async def _launch(
        self, origin: Origin, order: dict[str, Any], limits: WorkspaceLimits, network: Network
    ) -> tuple[Started, Origin]:
        """Start a box and give it its order; return it, and the origin that is held for it."""

    @abstractmethod
    async def _keep(self, workspace: Workspace, order: dict[str, Any]) -> tuple[Origin, Started]:
        """End the processes of a workspace, keep its files as a layer, and return the origin with that layer.

        It is held for the snapshot and, where the box that goes on is another one, for the workspace; that box is
        returned, too.
        """

    @abstractmethod
    def _drop_layer(self, layer: Hashable) -> None:
        """Free a layer that nobody needs."""

    def _drop_family(self, family: int) -> None:  # noqa: B027  # not every backend has families
        """Free what the workspaces of a family share."""

    @abstractmethod
    def _start_error(self, failure: dict[str, Any], image: UnpackedImage) -> SandboxError | UserError:
        """Return the error for a box that did not start. Args: failed: "failed" and perhaps "errno", from pid 1."""

    @abstractmethod
    async def _close_all(self) -> None:
        """End everything that is left."""

    async def open(
        self,
        image: UnpackedImage | Snapshot,
        *,
        limits: WorkspaceLimits = DEFAULT_WORKSPACE_LIMITS,
        network: Network = LOOPBACK,
    ) -> Workspace:
        """Start a workspace; close it in a `finally`.

        Raises:
            UserError: the image is not there or for another architecture, or a limit is out of range.
            SandboxError: the kernel or the engine failed, or this backend is closed.
        """
        self._require_open()
        origin = Origin(image=image) if isinstance(image, UnpackedImage) else self._origin_of(image)
        _check_image(origin.image)
        order = self._order(origin, limits, network)
        with in_use(origin.image.root):  # until `_hold` has taken it
            launch, origin = await self._launch(origin, order, limits, network)
        workspace = Workspace(
            origin,
            launch,
            limits=limits,
            network=network,
            capabilities=self.capabilities,
            environment=_environment_of(network, has_users=self.capabilities.users),
            freeze=self._freeze,
            on_close=self._forget,
        )
        self._open.add(workspace)
        return workspace

    async def open_pool(
        self,
        image: UnpackedImage | Snapshot,
        *,
        limits: WorkspaceLimits = DEFAULT_WORKSPACE_LIMITS,
        network: Network = LOOPBACK,
        warm: int = 2,
        most: int = 64,
        starts_per_s: float = 100.0,
    ) -> Pool:
        """Open a pool of workspaces, and wait until `warm` are started.

        Args:
            warm: workspaces that are kept started, beside those in use.
            most: workspaces at most, in use, idle and starting.
            starts_per_s: a bound on starts per second, on average; up to `warm` may start at once.

        Raises: as `open`.
        """

        async def start() -> Workspace:
            return await self.open(image, limits=limits, network=network)

        pool = Pool(start, warm=warm, most=most, starts_per_s=starts_per_s)
        self._pools.add(pool)
        await pool.fill()
        return pool

    async def close(self) -> None:
        """Close every workspace, snapshot and pool of this backend. Idempotent."""
        self._is_closed = True
        for pool in tuple(self._pools):
            await pool.close()
        await self._close_all()

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxError("the workspaces are closed")

    def _order(self, origin: Origin, limits: WorkspaceLimits, network: Network) -> dict[str, Any]:
        if network.mode is NetworkMode.ALLOWLIST:
            allowlist_of(network)  # an entry that is no host is refused before anything is started
        return order_of(limits, network) | {"workdir": origin.image.workdir or "/"}

    async def _begin(
        self, launch: Started, order: dict[str, Any], limits: WorkspaceLimits, network: Network, image: UnpackedImage
    ) -> None:
        """Give a box its order, and wait until it takes requests; a box that fails is ended."""
        try:
            launch.counters = Watched(launch.group, limits)
            failure = await launch.box.begin(order)
            if not failure and len(launch.box.listeners) < len(order["listeners"]):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the kernel drops what has no number here
            if not failure and network.mode is NetworkMode.ALLOWLIST:
                await open_proxies(network, launch.box.listeners, launch.proxies)
        except OSError as error:
            await launch.stop()
            raise SandboxError(f"a workspace could not be started: {error}") from error
        except BaseException:
            await launch.stop()
            raise
        if failure:
            await launch.stop()
            raise self._start_error(failure, image)

    async def _freeze(self, workspace: Workspace) -> Snapshot:
        order = self._order(workspace.origin, workspace.limits, workspace.network)
        origin, workspace.launch = await self._keep(workspace, order)
        return Snapshot(self, origin, lambda: self._release(origin), lambda: self._has_lost(origin))

    def _has_lost(self, origin: Origin) -> bool:
        """Whether the layers of an origin are not there any more, although they are held."""
        return False

    def _origin_of(self, snapshot: Snapshot) -> Origin:
        if not isinstance(snapshot, Snapshot) or snapshot.backend is not self:
            raise UserError(f"a {type(snapshot).__name__} is neither an unpacked image nor a snapshot of this backend.")
        if snapshot.is_closed:
            raise UserError("the snapshot is closed; take another one.")
        return snapshot.origin

    def _forget(self, workspace: Workspace) -> None:
        if workspace in self._open:
            self._open.discard(workspace)
            self._release(workspace.origin)

    def _hold(self, origin: Origin) -> None:
        self._images.take(origin.image.root)
        self._families[origin.family] += 1
        self._layers.update(origin.layers)

    def _release(self, origin: Origin) -> None:
        for layer in reversed(origin.layers):
            self._layers[layer] -= 1
            if not self._layers[layer]:
                del self._layers[layer]
                self._drop_layer(layer)
        self._images.give_back(origin.image.root)
        self._families[origin.family] -= 1
        if not self._families[origin.family]:
            del self._families[origin.family]
            self._drop_family(origin.family)


def above(origin: Origin, layer: Hashable) -> Origin:
    """Return an origin with a further layer."""
    return replace(origin, layers=(*origin.layers, layer))


def _environment_of(network: Network, *, has_users: bool) -> Mapping[str, str]:
    if network.mode is not NetworkMode.ALLOWLIST:
        return {}
    apt = {} if has_users else {"APT_CONFIG": "/dev/apt.conf"}  # apt's own user is not there
    return _PROXY_ENVIRONMENT | mirror_variables(network.mirrors) | apt


def _check_image(image: UnpackedImage) -> None:
    root = Path(image.root)
    if not root.is_absolute() or not root.is_dir():
        raise UserError(f"the image folder {str(root)!r} is not there; name the absolute path of an unpacked image.")
    architecture, machine = _MACHINES.get(image.architecture, image.architecture), platform.machine()
    if architecture not in ("", machine):
        raise UserError(
            f"the image {image.digest or str(root)} is for {image.architecture}, but this machine is {machine}; "
            "get the image for this architecture."
        )
