"""The "docker" backend of workspaces: containers of a Docker engine on this machine, from images of ours.

Pid 1 of a container is ours (`guest_workspace_contained.py`): it connects to a socket of the owner, and everything
else is as with the other backend. So the engine must share this machine's kernel and folders; Python comes from this
machine, read-only, and an image needs none. A snapshot is an image that the engine keeps on its disk.

Not covered: vulnerabilities of the kernel. Root of a workspace is root of the machine without its privileges, unless
the engine maps users. Access to the engine is access to its whole machine: give it to nobody else.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Coroutine
from typing import Any

from contrib.docker.engine import Engine
from contrib.docker.owner import reap, reap_images
from contrib.docker.workspace_container import ContainerKeeper, python_folder, reap_folders, start_container
from contrib.docker.workspace_images import Images
from contrib.workspaces.contract import Network, UnpackedImage, WorkspaceCapabilities, WorkspaceLimits
from contrib.workspaces.images.cache import in_thread
from contrib.workspaces.machines import selftest
from contrib.workspaces.machines.backend import Workspaces, above
from contrib.workspaces.machines.box import Box
from contrib.workspaces.machines.snapshot import Origin, Started
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import SandboxError, UserError
from sandboxes.guest.seccomp import seccomp_filter

_LONG_CALL_S = 600.0
"""Seconds for packing and committing an image."""
_CLOSE_S = 120.0
_NO_QUOTA = (
    "the disk is limited for each file only: the engine's storage driver has no quotas; keep its data on xfs that is "
    "mounted with pquota"
)
_NO_GROUP = (
    "a command that is killed for lack of memory is reported as killed by a signal: the control groups of the engine "
    "are not visible here; mount /sys/fs/cgroup of the engine's machine"
)
_SHARED_ROOT = (
    "root of a workspace is root of the machine, without its privileges: have the engine map users (userns-remap), or "
    "run it rootless"
)

_capabilities_of: dict[str, WorkspaceCapabilities] = {}


async def open_docker_workspaces() -> DockerWorkspaces:
    """Open the backend: find the engine, remove what dead owners left, check that it isolates (once per process)."""
    engine = await Engine.connect()
    try:
        await in_thread(python_folder)  # which may take seconds the first time
        workspaces = DockerWorkspaces(engine, Images(await Engine.connect(call_s=_LONG_CALL_S)))
    except BaseException:
        engine.close()
        raise
    try:
        reap_folders()
        await reap(engine)
        await reap_images(engine)
        await _check(workspaces, engine)
    except BaseException:
        await workspaces.close()
        raise
    return workspaces


class DockerWorkspaces(Workspaces):
    """Workspaces of a Docker engine. Created by `open_docker_workspaces`, which sets `has_quota`."""

    has_quota = True
    """Whether the engine can limit the disk of a container."""

    def __init__(self, engine: Engine, images: Images) -> None:
        super().__init__(WorkspaceCapabilities(backend="docker"))
        self._engine, self._engine_images = engine, images
        self._filter = base64.b64encode(seccomp_filter(in_group=True)).decode()
        self._images.take(python_folder())
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    async def _launch(
        self, origin: Origin, order: dict[str, Any], limits: WorkspaceLimits, network: Network
    ) -> tuple[Started, Origin]:
        self._hold(origin)
        try:
            base = str(origin.layers[-1]) if origin.layers else await self._engine_images.import_image(origin.image)
            link, keeper = await start_container(
                self._engine, base, limits, loopback=order["loopback"], has_quota=self.has_quota
            )
            launch = Started(Box(link, keeper), keeper.group)
            try:
                self._require_open()
            except SandboxError:
                await launch.stop()
                raise
            order |= {"filter": self._filter, "counted": True, "users": True, "own_ids": False}
            await self._begin(launch, order, limits, network, origin.image)
        except BaseException:
            self._release(origin)
            raise
        return launch, origin

    async def _keep(self, workspace: Workspace, order: dict[str, Any]) -> tuple[Origin, Started]:
        launch = workspace.launch
        await launch.box.end_processes()
        await workspace.settle()
        keeper = launch.box.keeper
        assert isinstance(keeper, ContainerKeeper)
        origin = above(workspace.origin, await self._engine_images.commit(keeper.container))
        self._hold(origin)  # the workspace goes on in its container, so it needs no more than before
        return origin, launch

    def _drop_layer(self, layer: Any) -> None:
        self._start_task(self._engine_images.remove(layer))

    def _start_error(self, failure: dict[str, Any], image: UnpackedImage) -> SandboxError | UserError:
        return SandboxError(f"a workspace did not start: {failure['failed']}")

    async def _close_all(self) -> None:
        try:
            await asyncio.gather(*(workspace.close() for workspace in tuple(self._open)), return_exceptions=True)
            for layer in reversed(list(self._layers)):  # of snapshots that are still open
                self._drop_layer(layer)
            self._layers.clear()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_CLOSE_S)
            await self._engine_images.close()
        finally:
            self._images.give_back(python_folder())
            self._engine.close()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something at the engine later: in the order of the calls, and before it is closed."""

        async def one_at_a_time() -> None:
            async with self._one_at_a_time:
                with contextlib.suppress(SandboxError):  # the next backend that opens removes what is left
                    await work

        task = asyncio.create_task(one_at_a_time())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _check(workspaces: DockerWorkspaces, engine: Engine) -> None:
    """Set the capabilities. Raises SandboxUnavailable with every canary that escaped."""
    key = engine.identity
    if key not in _capabilities_of:
        workspaces.has_quota = await _has_quota(workspaces)
        _capabilities_of[key] = await _measure(workspaces)
    workspaces.capabilities = _capabilities_of[key]
    workspaces.has_quota = _capabilities_of[key].disk_limit


async def _has_quota(workspaces: DockerWorkspaces) -> bool:
    try:
        await (await workspaces.open(selftest.IMAGE, limits=selftest.LIMITS)).close()
    except SandboxError as error:
        if "storage-opt" not in str(error):
            raise
        return False
    return True


async def _measure(workspaces: DockerWorkspaces) -> WorkspaceCapabilities:
    workspace = await workspaces.open(selftest.IMAGE, limits=selftest.LIMITS)
    try:
        view = await selftest.look(workspace)
        selftest.require_no_escape(view, disk=workspaces.has_quota)
        missing: tuple[str, ...] = () if workspaces.has_quota else (_NO_QUOTA,)
        if workspace.launch.group is None:
            missing += (_NO_GROUP,)
        else:
            await selftest.require_memory_limit(workspace, "the engine")
    finally:
        await workspace.close()
    return selftest.capabilities_of(
        view,
        backend="docker",
        users=True,
        memory_limit="engine",
        process_limit="engine",
        cpu_limit=True,
        disk_limit=workspaces.has_quota,
        missing=missing if selftest.root_is_unprivileged(view) else (*missing, _SHARED_ROOT),
    )
