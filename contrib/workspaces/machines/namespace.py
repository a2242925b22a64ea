"""The "namespace" backend of workspaces: overlays over unpacked images, in namespaces of their own, without a daemon.

A server process (`guest_workspace.py`) starts every workspace as a fork of itself. As root it maps the owners of the
image into a user namespace with 65,536 ids that are nobody's outside. An ordinary user gets workspaces with one user,
root, who is himself outside. What is written lies in a tmpfs. A control group limits memory, processes and CPUs, if the
machine has control groups; otherwise resource limits bound every process.

Not covered: vulnerabilities of the kernel; time and counters of the machine; the page cache of images in common.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import itertools
import os
import signal
import socket
from dataclasses import replace
from typing import Any

from contrib.workspaces.contract import Network, UnpackedImage, WorkspaceCapabilities, WorkspaceLimits
from contrib.workspaces.guest import WORKSPACE_GUEST
from contrib.workspaces.machines.backend import Workspaces, above
from contrib.workspaces.machines.box import Box, BoxEnd
from contrib.workspaces.machines.selftest import check_workspaces
from contrib.workspaces.machines.snapshot import Origin, Started
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import SandboxError, SandboxUnavailable, UserError
from forge_env.utils.deadlines import queued
from sandboxes.guest.seccomp import seccomp_filter
from sandboxes.host.cgroup_slots import SlotGroup
from sandboxes.host.cgroups import Groups, open_groups
from sandboxes.host.controlled import Controlled, why_not
from sandboxes.host.restarted import Restarted

_SPARES, _MOST_SPARES = 2, 256
_AT_ONCE = 64
"""Workspaces that start at a time; more would only wait longer for the server, which starts one after another."""
_ANSWER_S = 30.0


async def open_namespace_workspaces(*, cgroups: bool = True, spares: int = _SPARES) -> NamespaceWorkspaces:
    """Open the backend, and check that it isolates (once per process).

    Args:
        cgroups: limit every workspace as a whole if the machine has control groups; otherwise each of its processes.
        spares: number of workspaces with processes and control groups that are prepared ahead of demand, for any image.
    """
    if not 0 <= spares <= _MOST_SPARES:
        raise UserError(f"spares must be between 0 and {_MOST_SPARES}, not {spares}.")
    groups = open_groups() if cgroups else "control groups are switched off (cgroups=False)"
    try:
        server = await Server.start(groups)
    except BaseException:
        if isinstance(groups, Groups):
            groups.close()
        raise
    workspaces = NamespaceWorkspaces(server, groups, spares=spares)
    try:
        workspaces.capabilities = await check_workspaces(workspaces, groups)
    except BaseException:
        await workspaces.close()
        raise
    return workspaces


class NamespaceWorkspaces(Workspaces):
    """Workspaces of one server. Created by `open_namespace_workspaces`.

    Args:
        groups: the control groups, which are closed with it, or the reason for having none.
        spares: boxes that are prepared ahead of demand.

    A server that died is replaced at the next `open`, with new control groups. What it held is lost with it: layers,
    user namespaces, spares.
    """

    def __init__(self, server: Server, groups: Groups | str, *, spares: int = _SPARES) -> None:
        super().__init__(WorkspaceCapabilities(backend="namespace", disk_in_memory=True))
        self._servers = Restarted(server, self._start_again, closed="the workspaces are closed")
        self._groups = groups if isinstance(groups, Groups) else None
        self._starting = asyncio.Semaphore(_AT_ONCE)
        self._last_loss: tuple[int, str] = (0, "")
        """The numbers of all families up to this one are of servers that died; and how the last one did."""
        self._numbers = itertools.count(1)
        self._spares: list[tuple[int, Started]] = []
        """Prepared, each with a family of its own."""
        self._most_spares = spares

    async def _launch(
        self, origin: Origin, order: dict[str, Any], limits: WorkspaceLimits, network: Network
    ) -> tuple[Started, Origin]:
        async with queued():
            await self._starting.acquire()
        try:
            server = await self._servers.live()
            try:
                return await self._launch_on(origin, order, limits, network)
            except SandboxError:
                if origin.family or server.alive:
                    raise
            await self._servers.live()
            return await self._launch_on(origin, order, limits, network)  # no program of the workspace has run
        finally:
            self._starting.release()

    async def _launch_on(
        self, origin: Origin, order: dict[str, Any], limits: WorkspaceLimits, network: Network
    ) -> tuple[Started, Origin]:
        """Launch on the server that runs now."""
        last_lost, reason = self._last_loss
        if 0 < origin.family <= last_lost:
            raise SandboxError(f"the snapshot is lost, because {reason}; open its image again")
        is_of_image = not origin.family
        family, spare = self._take_spare() if is_of_image else (origin.family, self._prepare(origin.family))
        origin = replace(origin, family=family)
        self._hold(origin)
        try:
            await self._begin(spare, order | self._place(origin), limits, network, origin.image)
        except BaseException:
            self._release(origin)
            raise
        if is_of_image:
            self._refill()
        return spare, origin

    async def _start_again(self) -> Server:
        """Start another server after the last one died: with groups of its own, for the old ones may be gone."""
        self._last_loss = next(self._numbers), self._server.reason
        await self._stop_spares()
        if self._groups is not None:
            await asyncio.to_thread(self._groups.close)
            groups = open_groups()
            if isinstance(groups, str):
                raise SandboxError(f"the workspaces have lost their control groups: {groups}")
            self._groups = groups
        return await Server.start(self._groups)

    @property
    def _server(self) -> Server:
        return self._servers.process

    def _has_lost(self, origin: Origin) -> bool:
        return origin.family > 0 and (origin.family <= self._last_loss[0] or not self._server.alive)

    async def _keep(self, workspace: Workspace, order: dict[str, Any]) -> tuple[Origin, Started]:
        layer = next(self._numbers)
        below, origin = workspace.origin, above(workspace.origin, layer)
        await workspace.launch.stop(keep=layer)
        self._hold(origin)  # of the workspace
        self._release(below)
        workspace.origin = origin
        successor = self._prepare(origin.family)
        await self._begin(successor, order | self._place(origin), workspace.limits, workspace.network, origin.image)
        self._hold(origin)
        return origin, successor

    def _drop_layer(self, layer: Any) -> None:
        self._server.drop_layer(layer)

    def _drop_family(self, family: int) -> None:
        self._server.forget_family(family)

    async def _close_all(self) -> None:
        await self._servers.close()
        for workspace in tuple(self._open):
            await workspace.close()
        await self._stop_spares()
        if self._groups is not None:
            await asyncio.to_thread(self._groups.close)

    async def _stop_spares(self) -> None:
        spares, self._spares = self._spares, []
        for _, spare in spares:
            await spare.stop()

    def _take_spare(self) -> tuple[int, Started]:
        while self._spares:
            family, spare = self._spares.pop()
            if spare.box.alive:
                return family, spare
        family = next(self._numbers)
        return family, self._prepare(family)

    def _refill(self) -> None:
        """Prepare boxes for the next ones that are opened from an image."""
        with contextlib.suppress(SandboxError):  # the next one that is opened meets it, too, and reports it
            while not self._is_closed and self._server.alive and len(self._spares) < self._most_spares:
                family = next(self._numbers)
                self._spares.append((family, self._prepare(family)))

    def _prepare(self, family: int) -> Started:
        """Start a box that waits for its order."""
        number, groups = next(self._numbers), self._groups

        def drop_group() -> None:
            if groups is not None:
                groups.drop(number)

        try:
            group = groups.slot(number, keep_open=False) if groups is not None else None
            return Started(self._new_box(number, family, group), group, drop_group)
        except OSError as error:
            drop_group()
            raise SandboxError(f"a workspace could not be started: {error}") from error

    def _new_box(self, number: int, family: int, group: SlotGroup | None) -> Box:
        link, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        joins: list[int] = []
        try:
            joins = group.join_files() if group is not None else []
            return Box(link, self._server.open(number, family, [guest_end.fileno(), *joins]))
        except BaseException:
            link.close()
            raise
        finally:
            guest_end.close()
            for fd in joins:
                os.close(fd)

    def _place(self, origin: Origin) -> dict[str, Any]:
        """Return what pid 1 is told of its files, its users and who counts its resources."""
        return {
            "image": str(origin.image.root),
            "layers": origin.layers,
            "counted": self._groups is not None,
            "users": os.geteuid() == 0,
            "own_ids": True,
        }

    def _start_error(self, failure: dict[str, Any], image: UnpackedImage) -> SandboxError | UserError:
        text, number = failure["failed"], failure.get("errno")
        if number in (errno.ENOSPC, errno.ENOMEM):
            return SandboxError(f"no room for a workspace: {text}; close others, or free memory")
        if "mapped ids" in text:
            return SandboxUnavailable(
                f"workspaces: the file system of {image.root} cannot map owners ({text}); keep images on ext4, xfs or "
                "btrfs, or on tmpfs with Linux 6.3 or newer."
            )
        if "overlay" in text and number in (errno.EPERM, errno.ENODEV, errno.EINVAL):
            return SandboxUnavailable(f"workspaces: the kernel refuses an overlay ({text}); {_overlay_remedy()}.")
        if number in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            return SandboxUnavailable(f"workspaces: the kernel refused to isolate ({text}); {_overlay_remedy()}.")
        return SandboxError(f"a workspace did not start: {text}")


def _overlay_remedy() -> str:
    if os.geteuid() == 0:
        return "root needs CAP_SYS_ADMIN, Linux 5.12 or newer, and the module overlay (modprobe overlay)"
    return (
        "an ordinary user needs Linux 5.12 or newer with overlayfs in user namespaces (modprobe overlay, sysctl "
        "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0); else run as root, or "
        "install Docker for the backend docker (apt install docker.io)"
    )


class ServedBox:
    """The `Keeper` of a workspace that the server has started."""

    end_s = 10.0

    def __init__(self, server: Server, number: int, end: asyncio.Future[BoxEnd]) -> None:
        self.end = end
        self._server, self._number = server, number

    def kill(self, *, keep: int = 0) -> None:
        self._server.kill(self._number, keep=keep)

    def give_up(self) -> None:
        self._server.give_up(self._number)

    def on_link_end(self) -> None:
        """Nothing to do: the server reports the end."""


class Server(Controlled[BoxEnd]):
    """A running server. Create one with `await Server.start(...)`; end it with `await server.close()`."""

    program = WORKSPACE_GUEST / "guest_workspace.py"
    who = "the server of the workspaces"
    end = BoxEnd
    end_key = "ended"
    close_s = 10.0
    closed = "the workspaces were closed"

    @classmethod
    async def start(cls, groups: Groups | str | None) -> Server:
        """Start a server and wait until it takes orders.

        Args: groups: the control groups of its workspaces, which it removes if the owner is killed.
        """
        server = cls._spawn()
        filters = {"strict": seccomp_filter(), "counted": seccomp_filter(in_group=True)}
        tops = groups.tops if isinstance(groups, Groups) else []
        await server._begin(
            {
                "filters": {name: base64.b64encode(code).decode() for name, code in filters.items()},
                "groups": [[str(top.parent), top.name] for top in tops],
            }
        )
        return server

    def open(self, number: int, family: int, fds: list[int]) -> ServedBox:
        """Start the workspace `number`, which waits for its order.

        Args:
            family: workspaces of one family share a user namespace, as they share files.
            fds: the socket on which it waits for its order, and the files for joining its control groups.
        """
        return ServedBox(self, number, self._work(number, {"open": number, "family": family}, fds))

    def kill(self, number: int, *, keep: int = 0) -> None:
        """Kill a workspace; its files become the layer `keep`, unless that is 0. No-op if it has ended."""
        if number in self._waiting:
            self._send({"kill": number, "keep": keep})

    def give_up(self, number: int) -> None:
        """Stop waiting for the end of a workspace. The server goes on, for the others, if it answers."""
        self._take({"ended": number, "status": signal.SIGKILL})
        self._send({"ping": number})
        self._expect_answer(_ANSWER_S)

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("kept") and message["ended"] not in self._waiting:  # it was given up: nobody holds its layer
            self.drop_layer(message["kept"])
        super()._take(message)

    def drop_layer(self, number: int) -> None:
        self._send({"drop": number})

    def forget_family(self, number: int) -> None:
        self._send({"forget": number})

    def _refusal(self, answer: dict[str, Any]) -> UserError:
        is_late = "late" in answer
        return SandboxUnavailable(
            f"workspaces: their server did not start: {answer['failed']}." if is_late else why_not(answer["failed"])
        )
