"""One container as a workspace: how it is made, how its pid 1 comes to be connected, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from contrib.docker import owner
from contrib.docker.engine import Engine
from contrib.docker.group import ContainerSlot
from contrib.docker.recipe import usual_settings
from contrib.workspaces.contract import WorkspaceLimits
from contrib.workspaces.guest import WORKSPACE_GUEST
from contrib.workspaces.images.host_image import host_image
from contrib.workspaces.machines.box import BoxEnd
from forge_env.core.errors import SandboxError, SandboxUnavailable
from sandboxes.host.cgroups import groups_of, owner_name
from sandboxes.host.controlled import FLAGS, GUEST

_START_S, _LOOK_S = 60.0, 0.5
_OWN_MEMORY_BYTES = 32 * 2**20
"""Memory of pid 1, in addition to the commands'."""
_AT = "/dev/.forge-env"
"""Where the container has what comes from this machine. /dev is made by the engine: the image gets no trace of it."""
_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETFCAP"]
_HIDDEN = ["/sys", "/etc/ld.so.preload", *(f"/proc/{name}" for name in (
    "asound", "acpi", "kcore", "keys", "kallsyms", "kmsg", "latency_stats", "timer_list", "timer_stats", "sched_debug",
    "scsi", "sysrq-trigger"))]  # fmt: skip
"""/etc/ld.so.preload: code of the image would run in pid 1 before it has given up anything."""
_READ_ONLY = ["/dev", *(f"/proc/{name}" for name in ("bus", "fs", "irq", "sys"))]
_FOLDERS = "forge_env-link-"


class ContainerKeeper:
    end_s = 120.0

    def __init__(self, engine: Engine, container: str, group: ContainerSlot | None) -> None:
        self.container, self.group = container, group
        self.end: asyncio.Future[BoxEnd] = asyncio.get_running_loop().create_future()
        self._engine = engine
        self._removing: asyncio.Task[None] | None = None

    def kill(self, *, keep: int = 0) -> None:
        if self._removing is None:
            self._removing = asyncio.create_task(self._remove())

    def give_up(self) -> None:
        self._end(BoxEnd(failure="the engine did not remove its container in time"))

    def on_link_end(self) -> None:
        self.kill()

    async def _remove(self) -> None:
        try:
            await owner.remove_whole(self._engine, self.container)
        except Exception as error:
            self._end(BoxEnd(failure=str(error)))
        else:
            self._end(BoxEnd())

    def _end(self, end: BoxEnd) -> None:
        if self.group is not None:
            self.group.close()
        if not self.end.done():
            self.end.set_result(end)


async def start_container(
    engine: Engine, image: str, limits: WorkspaceLimits, *, loopback: bool, has_quota: bool
) -> tuple[socket.socket, ContainerKeeper]:
    """Start a container, and wait until its pid 1 is connected; return the link to it.

    Args:
        image: the engine's id.
        loopback: whether the workspace keeps its loopback.
        has_quota: whether to ask the engine for a limit of the disk.
    """
    with _listening() as (listener, folder):
        settings = _settings(engine, limits, folder, loopback=loopback, has_quota=has_quota)
        container = await owner.finish_creation(engine, _create(engine, image, settings))
        try:
            await engine.call(engine.client.api.start, container)
            link = await _accept(engine, container, listener)
        except BaseException:
            with contextlib.suppress(SandboxError):
                await asyncio.shield(owner.remove_whole(engine, container))
            raise
    return link, ContainerKeeper(engine, container, _group_of(link))


def reap_folders() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}*"):
        name = folder.name.removeprefix(_FOLDERS).rpartition("-")[0]
        namespace, pid, _ = name.split("-") if name.count("-") == 2 else ("", "0", "")
        if namespace == owner_name(os.getpid()).partition("-")[0] and owner_name(int(pid)) != name:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _listening() -> Iterator[tuple[socket.socket, Path]]:
    """Yield a socket, and the folder that it is in: only this user gets there, and users of the container."""
    top = Path(tempfile.mkdtemp(prefix=f"{_FOLDERS}{owner_name(os.getpid())}-"))
    try:
        folder = top / "link"
        folder.mkdir(mode=0o755)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(folder / "socket"))
            (folder / "socket").chmod(0o666)
            listener.listen(1)
            listener.setblocking(False)
            yield listener, folder
    finally:
        shutil.rmtree(top, ignore_errors=True)


async def _accept(engine: Engine, container: str, listener: socket.socket) -> socket.socket:
    accepting = asyncio.create_task(asyncio.get_running_loop().sock_accept(listener))
    try:
        async with asyncio.timeout(_START_S):
            while not (await asyncio.wait([accepting], timeout=_LOOK_S))[0]:
                if not await owner.is_there(engine, container):
                    raise SandboxError("docker: the first process of a container ended at once")
    except TimeoutError:
        raise SandboxError(f"docker: the first process of a container did not answer in {_START_S:g} s") from None
    finally:
        accepting.cancel()
    return accepting.result()[0]


async def _create(engine: Engine, image: str, settings: dict[str, Any]) -> str:
    api = engine.client.api
    host = api.create_host_config(**settings)
    host |= {"MaskedPaths": _HIDDEN, "ReadonlyPaths": _READ_ONLY, "CgroupnsMode": "private"}
    try:
        answer = await engine.call(
            api.create_container,
            image,
            entrypoint=_command(),
            command=[],
            user="0:0",
            working_dir="/",
            hostname="workspace",
            environment={"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "2"},
            labels=owner.labels(),
            host_config=host,
        )
    except SandboxError as error:
        if "bind source path does not exist" in str(error):
            raise SandboxUnavailable(
                "docker: the engine does not see this machine's folders, so it cannot run workspaces; use one on this "
                "machine (DOCKER_HOST=unix:///...)."
            ) from error
        raise
    return str(answer["Id"])


def _settings(
    engine: Engine, limits: WorkspaceLimits, folder: Path, *, loopback: bool, has_quota: bool
) -> dict[str, Any]:
    guests = {f"{_AT}/guest": GUEST, f"{_AT}/workspace": WORKSPACE_GUEST}
    places = {f"{_AT}/python": python_folder(), f"{_AT}/link": folder, **guests}
    memory, processes = limits.memory_bytes + _OWN_MEMORY_BYTES, limits.processes + 1
    settings = usual_settings(memory, limits.cpus, processes, shm_bytes=limits.memory_bytes // 2) | {
        # To take down the loopback, and to give that up for good.
        "cap_add": [*_CAPABILITIES, *(() if loopback else ("NET_ADMIN", "SETPCAP"))],
        "mounts": [
            {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}
            for target, source in places.items()
        ],
        "security_opt": ["no-new-privileges"],
        "sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"},
    }
    if has_quota:
        settings["storage_opt"] = {"size": str(limits.disk_bytes)}
    return settings


@cache
def python_folder() -> Path:
    """The folder with this machine's Python and its libraries."""
    return host_image().root


@cache
def _command() -> list[str]:
    """How the container starts pid 1: with the loader and the libraries that belong to this Python."""
    root = python_folder()
    loader = next((path for path in sorted(root.glob("lib*/**/ld-*.so*")) if not path.is_symlink()), None)
    if loader is None:
        raise SandboxUnavailable("docker: this Python has no dynamic loader, so containers cannot start it.")
    libraries = sorted({path.parent for path in root.glob("**/*.so*") if "lib-dynload" not in path.parts})
    at = [f"{_AT}/python/{path.relative_to(root)}" for path in libraries]
    python = [f"{_AT}/python/usr/local/bin/python3", *FLAGS]
    program = [f"{_AT}/workspace/guest_workspace_contained.py", f"{_AT}/link/socket", f"{_AT}/guest"]
    start = [f"{_AT}/python/{loader.relative_to(root)}", "--inhibit-cache", "--library-path", ":".join(at)]
    return [*start, *python, *program]


def _group_of(link: socket.socket) -> ContainerSlot | None:
    """Return the control group of the process at the other end, as this process sees it; None if it does not."""
    pid, _, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    folders = groups_of(pid) if pid else {}
    if "memory" not in folders:
        return None
    v2 = (folders["memory"] / "memory.events").exists()
    events = folders["memory"] / ("memory.events" if v2 else "memory.oom_control")
    return ContainerSlot(str(events), str(folders.get("pids", folders["memory"]) / "pids.events"))
