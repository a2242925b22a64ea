"""The server of the workspaces under load, and after its death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from pathlib import Path

import pytest

from contrib.workspaces.contract import Network, NetworkMode, UnpackedImage
from contrib.workspaces.env.prepared_env import Bases
from contrib.workspaces.images.dockerfile import BuiltImage
from contrib.workspaces.machines.namespace import NamespaceWorkspaces, ServedBox, Server
from contrib.workspaces.machines.proxy import Service
from contrib.workspaces.machines.workspace import Workspace
from contrib.workspaces.tests.machines.conftest import open_one, opened_or_skipped
from forge_env.core.errors import SandboxError
from tests.helpers.processes import control_groups, descendants, descriptors, without_descriptors
from tests.helpers.waiting import DEADLINE_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEATH = r"the server of the workspaces died of SIGKILL \(signal 9\)"


def namespace(**settings: int) -> contextlib.AbstractAsyncContextManager[NamespaceWorkspaces]:
    return opened_or_skipped("namespace", **settings)  # type: ignore[return-value]


def held() -> tuple[set[int], list[str], list[str]]:
    return descendants(os.getpid()), control_groups(os.getpid()), descriptors()


async def works(workspace: Workspace) -> bool:
    return (await workspace.exec("echo on")).stdout == "on\n"


async def test_many_opens_wait_for_a_server_that_is_busy(small_image: UnpackedImage) -> None:
    async with namespace(spares=0) as workspaces:
        server = workspaces._server
        server._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel takes its least
        os.kill(server.pid, signal.SIGSTOP)
        opening = [asyncio.create_task(workspaces.open(small_image)) for _ in range(40)]
        await until(lambda: server._unsent)
        os.kill(server.pid, signal.SIGCONT)
        opened = await asyncio.gather(*opening)
        assert all([await works(workspace) for workspace in opened[::13]])
        await asyncio.gather(*(workspace.close() for workspace in opened))
        assert workspaces._server is server and server.alive


async def test_a_killed_server_is_a_fault_and_is_replaced(small_image: UnpackedImage) -> None:
    async with namespace():
        pass  # what is opened once per process
    before = held()
    async with namespace(spares=0) as workspaces:  # a spare needs no server to open
        server, old_groups = workspaces._server, workspaces._groups
        workspace, other = [await workspaces.open(small_image) for _ in range(2)]
        snapshot = await workspace.snapshot()
        pool = await workspaces.open_pool(small_image, warm=1, most=1)
        running = asyncio.create_task(workspace.exec("sleep 600", timeout_s=DEADLINE_S))
        os.kill(server.pid, signal.SIGSTOP)
        waiting = [asyncio.create_task(workspaces.open(small_image)) for _ in range(5)]
        await asyncio.sleep(0)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match=f"ended while a command ran in it: {DEATH}"):
            await running
        opened = await asyncio.gather(*waiting)
        assert all([await works(workspace) for workspace in opened])
        for attempt in (workspace.exec("true"), workspace.put("/x", b""), workspace.open_shell(), other.snapshot()):
            with pytest.raises(SandboxError, match=f"the workspace has ended, because {DEATH}; close it"):
                await attempt
        with pytest.raises(SandboxError, match=f"the snapshot is lost, because {DEATH}; open its image again"):
            await workspaces.open(snapshot)
        async with pool.take() as warm:
            assert await works(warm)
        fork = await workspaces.open(await opened[0].snapshot())
        assert await works(fork) and workspaces._server is not server
        for stale in (workspace, other):
            await stale.close()
        await snapshot.close()
        assert await works(fork), "what the old server held is not the new one's"
        if old_groups is not None:
            assert not any(top.exists() for top in old_groups.tops)
    assert held() == before


async def test_a_server_says_what_has_ended_it(small_image: UnpackedImage) -> None:
    async with namespace(spares=2) as workspaces:  # which end with it
        workspace = await workspaces.open(small_image)
        os.kill(workspaces._server.pid, signal.SIGTERM)
        with pytest.raises(SandboxError, match="the server of the workspaces ended with exit code 0"):
            await workspace.exec("sleep 600", timeout_s=DEADLINE_S)
        await workspace.close()
        workspace = await workspaces.open(small_image)
        workspaces._server._control.send(b"no message")
        with pytest.raises(SandboxError, match="ended with exit code 1: JSONDecodeError"):
            await workspace.exec("sleep 600", timeout_s=DEADLINE_S)
        await workspace.close()


async def test_a_server_without_room_for_files_refuses_and_goes_on(small_image: UnpackedImage) -> None:
    async with namespace(spares=1) as workspaces:
        server = workspaces._server
        opened = [await workspaces.open(small_image)]
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        await until(lambda: len(children.read_text().split()) == 2, "a spare")
        usual = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{server.pid}/fd"))
        refused = 0
        for most in (3, *range(used - 2, used + 10)):
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (most, usual[1]))
            try:
                opened.append(await workspaces.open(small_image))
            except SandboxError as error:
                assert "oo many open files" in str(error)
                refused += 1
            if most == 3:  # no descriptor is free: it was the spare, of which the server has not got the files
                with pytest.raises(SandboxError, match="could not be kept: .* too many open files"):
                    await opened[-1].snapshot()
        assert refused
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, usual)
        await workspaces._stop_spares()  # which have the limit of the server that made them
        opened.append(await workspaces.open(small_image))
        assert await works(opened[-1]) and workspaces._server is server
        for workspace in opened:
            await workspace.close()


async def test_one_end_that_is_not_reported_does_not_end_the_others(
    small_image: UnpackedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with namespace(spares=0) as workspaces:
        stuck, other = [await workspaces.open(small_image) for _ in range(2)]
        server = workspaces._server
        with monkeypatch.context() as patch:
            patch.setattr(ServedBox, "end_s", 0.01)
            patch.setattr(Server, "kill", lambda *_, **__: None)
            await stuck.close()
        await until(lambda: server._answer_deadline is None)
        assert server.alive and await works(other)
        await other.close()


async def test_a_layer_that_is_kept_after_its_box_was_given_up_is_dropped(
    small_image: UnpackedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with namespace(spares=0) as workspaces:
        workspace, server, dropped = await workspaces.open(small_image), workspaces._server, list[int]()
        drop = server.drop_layer
        monkeypatch.setattr(server, "drop_layer", lambda number: (dropped.append(number), drop(number)))
        os.kill(server.pid, signal.SIGSTOP)
        with monkeypatch.context() as patch, pytest.raises(SandboxError, match="could not be kept"):
            patch.setattr(ServedBox, "end_s", 0.01)
            await workspace.snapshot()
        os.kill(server.pid, signal.SIGCONT)
        await until(lambda: dropped, "the end of the box")
        mounts = Path(f"/proc/{server.pid}/mountinfo")
        await until(lambda: f"/layers/{dropped[0]} " not in mounts.read_text())
        other = await workspaces.open(small_image)
        snapshot = await other.snapshot()
        assert "/layers/" in mounts.read_text(), "where the mounts of layers show"
        await snapshot.close()
        await other.close()
        assert server.alive and len(dropped) == 2


async def test_a_server_that_hangs_is_killed_and_replaced(
    small_image: UnpackedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with namespace(spares=0) as workspaces:
        workspace, server = await workspaces.open(small_image), workspaces._server
        os.kill(server.pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(ServedBox, "end_s", 0.01)
            patch.setattr("contrib.workspaces.machines.namespace._ANSWER_S", 0.01)
            await workspace.close()
            await until(lambda: not server.alive)
        assert server.reason == "the server of the workspaces was killed because it did not answer"
        opened = await workspaces.open(small_image)
        assert await works(opened)
        await opened.close()


async def test_what_tasks_begin_from_is_prepared_again_after_a_death(small_image: UnpackedImage) -> None:
    async with namespace(spares=0) as workspaces:
        bases = Bases(workspaces)

        async def make() -> BuiltImage:
            async with open_one(workspaces, small_image) as workspace:
                return BuiltImage(files=await workspace.snapshot())

        async def begins(base: BuiltImage) -> bool:
            async with open_one(workspaces, base.files) as workspace:
                return await works(workspace)

        async def kill_server() -> None:
            server = workspaces._server
            os.kill(server.pid, signal.SIGKILL)
            await until(lambda: not server.alive)

        async with bases.lease("a", make) as first:
            assert await begins(first)
            await kill_server()
            async with bases.lease("a", make) as second:  # while the first one is in use
                assert second is not first and await begins(second)
        await kill_server()
        async with bases.lease("a", make) as third:
            assert await begins(third)
        await bases.close()
        assert not workspaces._layers and not workspaces._families


@pytest.mark.parametrize("method", ["close", "snapshot"])
async def test_a_cancellation_leaves_nothing(small_image: UnpackedImage, method: str) -> None:
    network = Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=("example.org",))
    async with namespace(spares=0) as workspaces:
        await (await workspaces.open(small_image, network=network)).close()
        before = held()
        for turns in range(1, 12):
            workspace = await workspaces.open(small_image, network=network)
            work = asyncio.create_task(getattr(workspace, method)())
            for _ in range(turns):
                await asyncio.sleep(0)
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            await workspace.close()
        await until(lambda: held() == before)
        assert not workspaces._layers and not workspaces._families and not workspaces._open


async def test_a_machine_without_descriptors_is_a_fault(small_image: UnpackedImage) -> None:
    async with namespace(spares=0) as workspaces:
        workspace = await workspaces.open(small_image)
        shell = await workspace.open_shell()
        before = held()
        for attempt in (
            lambda: workspace.exec("true"),
            workspace.open_shell,
            lambda: workspace.put("/x", b"x"),
            lambda: workspace.get("/bin/sh"),
            lambda: workspaces.open(small_image),
        ):
            with pytest.raises(SandboxError, match="Too many open files"), without_descriptors():
                await attempt()
        assert held() == before and await works(workspace) and (await shell.run("true")).ok
        await workspace.close()


@pytest.mark.parametrize("fails", ["a listener", "a proxy"])
async def test_a_workspace_whose_ports_are_not_served_is_ended(
    small_image: UnpackedImage, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    async with namespace(spares=0) as workspaces:
        await (await workspaces.open(small_image)).close()
        before, receive = held(), socket.recv_fds

        def without_files(*arguments: int) -> object:
            data, fds, flags, address = receive(*arguments)  # type: ignore[arg-type]
            for fd in fds:
                os.close(fd)
            return data, [], flags, address

        async def refuse(*_: object) -> None:
            raise OSError(24, "Too many open files")

        if fails == "a listener":
            monkeypatch.setattr(socket, "recv_fds", without_files)
        else:
            monkeypatch.setattr(Service, "start", refuse)
        with pytest.raises(SandboxError, match="could not be started: .*Too many open files"):
            await workspaces.open(
                small_image, network=Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=("example.org",))
            )
        assert held() == before
