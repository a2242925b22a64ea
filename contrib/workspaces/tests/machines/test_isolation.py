"""What a workspace shares with the machine, other workspaces and its image: nothing. And what it leaves: nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import forge_env
from contrib.workspaces.contract import Network, NetworkMode, UnpackedImage
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.pool import Pool
from contrib.workspaces.open import open_workspaces
from contrib.workspaces.tests.machines.conftest import open_one
from contrib.workspaces.tests.made_images import make_small_image
from forge_env.core.errors import SandboxError, SandboxUnavailable, UserError
from tests.helpers.processes import control_groups, descendants
from tests.helpers.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(forge_env.__file__).parents[1]

OWNER = """
import asyncio, sys
from pathlib import Path
from contrib.workspaces.contract import (UnpackedImage)
from contrib.workspaces.open import open_workspaces

async def main():
    image = UnpackedImage(root=Path(sys.argv[1]))
    async with open_workspaces("namespace") as workspaces:
        opened = [await workspaces.open(image) for _ in range(int(sys.argv[2]))]
        for workspace in opened[:4]:
            shell = await workspace.open_shell()
            await shell.run("sleep 600 & setsid sleep 600 & echo x > /written")
        snapshot = await opened[0].snapshot()
        opened.append(await workspaces.open(snapshot))
        print(workspaces._server.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


PLACES = ("/sys", "/sys/dev", "/sys/layers", "/sys/box")
"""Where the server of workspaces mounts, in a mount namespace of its own."""


def mounts(image: Path | None = None) -> list[str]:
    """Return the mounts of this machine that can only be of workspaces: of this image, or where their server mounts.

    Others that run beside these tests mount and unmount what they like.
    """
    lines = Path("/proc/self/mounts").read_text().splitlines()
    below = tuple(f"{place}/" for place in PLACES[1:])
    return [
        line
        for line in lines
        if (point := line.split()[1]) in PLACES[1:]
        or point.startswith(below)
        or (point == "/sys" and " tmpfs " in line)
        or (image is not None and str(image) in line)
    ]


def wait_for_no_groups(pid: int) -> None:
    """The server of workspaces removes them when its owner has ended; `descendants` can miss the server."""
    wait_until(lambda: not control_groups(pid), "the end of all control groups")


def no_new_mounts(before: list[str], image: Path | None = None) -> None:
    """Check that nothing more is mounted; what another test has mounted for a moment is waited for."""
    wait_until(lambda: not Counter(mounts(image)) - Counter(before), "the end of all mounts")


async def test_workspaces_see_only_their_own(
    workspaces: Workspaces, small_image: UnpackedImage, tmp_path: Path
) -> None:
    async with open_one(workspaces, small_image) as first, open_one(workspaces, small_image) as second:
        await first.exec("echo x > /tmp/own; echo x > /dev/shm/own; sleep 600 & echo x > /written")
        for path in ("/tmp/own", "/dev/shm/own", "/written", str(tmp_path), str(ROOT), "/sys/fs/cgroup"):
            listed = await second.exec(f"ls {path}")
            assert listed.exit_code != 0, (path, listed.stdout)
        listed = await second.exec("cd /proc; echo [0-9]*; cat /proc/*/comm; cat /proc/mounts")
        assert len(listed.stdout.splitlines()[0].split()) <= 2 and "sleep" not in listed.stdout
        assert str(ROOT) not in listed.stdout
        if workspaces.capabilities.backend == "namespace":  # Docker covers /sys, and lists both mounts
            assert "/sys" not in [line.split()[1] for line in mounts_in(listed.stdout)]
        assert (await second.exec("cd /proc/1; ls root/ cwd/ fd/")).exit_code != 0
        assert (await second.exec("kill -9 1; kill -9 -1; echo still")).stdout in ("", "still\n")
        assert (await second.exec("echo here")).stdout == "here\n"


def mounts_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line.split()) == 6]


async def test_networks(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    connect = "exec 3<>/dev/tcp/127.0.0.1/{port} && echo hello >&3 && cat <&3"
    with socket.create_server(("127.0.0.1", 0)) as server:
        outside = server.getsockname()[1]
        async with open_one(workspaces, small_image, network=Network(listeners=(80, 8080))) as workspace:
            assert (await workspace.exec(["bash", "-c", connect.format(port=outside)])).exit_code != 0
            assert (await workspace.exec(["bash", "-c", connect.format(port=9)])).exit_code != 0
            for port in (80, 8080):
                task = asyncio.create_task(workspace.exec(["bash", "-c", connect.format(port=port)]))
                listener = workspace.listener(port)
                listener.setblocking(False)
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                with connection:
                    assert await asyncio.get_running_loop().sock_recv(connection, 99) == b"hello\n"
                    await asyncio.get_running_loop().sock_sendall(connection, b"served")
                assert (await task).stdout == "served"
            with pytest.raises(UserError, match="no listener on port 81"):
                workspace.listener(81)
        async with open_one(workspaces, small_image, network=Network(mode=NetworkMode.NONE)) as none:
            assert "Network is unreachable" in (await none.exec(["bash", "-c", connect.format(port=outside)])).stderr
            assert (await none.exec("cat /proc/net/dev")).stdout.count(":") == 1
    with pytest.raises(UserError, match="has no listeners"):
        await workspaces.open(small_image, network=Network(mode=NetworkMode.NONE, listeners=(80,)))


@pytest.mark.parametrize(
    "hostile", ["proc is a link", "dev is a file", "etc is a link out", "passwd is a pipe", "tmp is a link"]
)
async def test_hostile_images(workspaces: Workspaces, hostile: str, tmp_path: Path) -> None:
    """An image with something else where /proc, /dev, /etc and /tmp belong harms nothing outside."""
    root = tmp_path / "image"
    image = make_small_image(root)
    outside = tmp_path / "outside"
    outside.mkdir()
    match hostile:
        case "proc is a link":
            (root / "proc").rmdir()
            (root / "proc").symlink_to("/var/tmp")
        case "dev is a file":
            (root / "dev").rmdir()
            (root / "dev").write_text("")
        case "etc is a link out":
            (root / "etc").rename(root / "elsewhere")
            (root / "etc").symlink_to(outside)
        case "passwd is a pipe":
            (root / "etc/passwd").unlink()
            os.mkfifo(root / "etc/passwd")
        case "tmp is a link":
            (root / "tmp").rmdir()
            (root / "tmp").symlink_to(outside)
    before = mounts()
    try:
        workspace = await workspaces.open(image)
    except SandboxError as error:
        assert hostile in ("dev is a file", "proc is a link") and "of the image is not a folder" in str(error)
    else:
        ours = workspaces.capabilities.backend == "namespace"
        assert not ours or hostile not in ("dev is a file", "proc is a link")
        assert (await workspace.exec("echo on", cwd="/")).stdout == "on\n"
        if hostile in ("etc is a link out", "passwd is a pipe"):
            with pytest.raises(UserError, match="no user 'agent'"):
                await workspace.exec("id", user="agent")
        await workspace.close()
    no_new_mounts(before)
    assert list(outside.iterdir()) == []


async def test_closing_leaves_nothing(small_image: UnpackedImage, tmp_path: Path) -> None:
    try:
        async with open_workspaces("namespace") as workspaces:  # what is kept for the process is there before
            await (await workspaces.open(small_image)).close()
    except UserError as error:
        pytest.skip(str(error))
    gc.collect()  # what earlier tests have left to it
    mounted = mounts()
    before = descendants(os.getpid()), control_groups(os.getpid()), len(os.listdir("/proc/self/fd"))
    async with open_workspaces("namespace") as workspaces:
        opened = [await workspaces.open(small_image, network=Network(listeners=(8000,))) for _ in range(8)]
        tasks = [asyncio.create_task(workspace.exec("sleep 600 & sleep 600")) for workspace in opened]
        shells = [await workspace.open_shell() for workspace in opened[:3]]
        await shells[0].run("sleep 600 &")
        await opened[0].snapshot()
        pool = await workspaces.open_pool(small_image, warm=3)
        async with pool.take() as workspace:
            await workspace.exec("sleep 600 &")
        for workspace in opened[:4]:
            await workspace.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, SandboxError) for result in results)
    del results, tasks
    wait_until(lambda: descendants(os.getpid()) == before[0], "the end of all processes")
    assert (descendants(os.getpid()), control_groups(os.getpid()), len(os.listdir("/proc/self/fd"))) == before
    no_new_mounts(mounted)


@pytest_asyncio.fixture(loop_scope="module")
async def namespace_works() -> None:
    try:
        async with open_workspaces("namespace"):
            pass
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def kill_an_owner(image: UnpackedImage, count: int, folder: Path, *, server_too: bool = False) -> int:
    """Start an owner of workspaces, kill it, and wait until all its processes are gone; return its process id.

    Args: folder: for its temporary files.
    """
    environ = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PATH": os.environ["PATH"], "TMPDIR": str(folder)}
    command = [sys.executable, "-c", OWNER, str(image.root), str(count)]
    with subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        line = owner.stdout.readline()
        assert line, "the owner failed"
        family = descendants(owner.pid)
        assert len(family) > count
        if server_too:
            os.kill(int(line), signal.SIGKILL)
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not family & set(map(int, filter(str.isdigit, os.listdir("/proc")))), "the end of all processes")
    return owner.pid


@pytest.mark.parametrize("server_too", [False, True], ids=["owner", "owner and server"])
async def test_a_killed_owner_leaves_nothing(
    namespace_works: None, small_image: UnpackedImage, server_too: bool, tmp_path: Path
) -> None:
    before = mounts(small_image.root)
    owner = await asyncio.to_thread(kill_an_owner, small_image, 3, tmp_path, server_too=server_too)
    if server_too:  # nobody was left to remove the control groups: the next one does
        async with open_workspaces("namespace"):
            pass
    no_new_mounts(before, small_image.root)
    wait_for_no_groups(owner)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_five_hundred_workspaces_with_killed_owners_leave_nothing(
    namespace_works: None, small_image: UnpackedImage, tmp_path: Path
) -> None:
    before = mounts(small_image.root)
    for _ in range(10):
        owner = await asyncio.to_thread(kill_an_owner, small_image, 50, tmp_path)
        no_new_mounts(before, small_image.root)
        wait_for_no_groups(owner)
        assert list(tmp_path.iterdir()) == []


async def test_a_pool_gives_each_workspace_once(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    pool = await workspaces.open_pool(small_image, warm=2, most=3)
    seen = []

    async def use(number: int) -> None:
        async with pool.take() as workspace:
            seen.append(workspace)
            assert (await workspace.exec(f"ls /used; echo {number} > /used")).stdout == ""

    await asyncio.gather(*(use(number) for number in range(5)))
    assert len({id(workspace) for workspace in seen}) == 5
    assert pool.stats.busy == 0 and pool.stats.idle + pool.stats.starting <= 3  # type: ignore[attr-defined]
    async with asyncio.timeout(DEADLINE_S):
        async with pool.take():
            pass
    await pool.close()
    with pytest.raises(SandboxError):
        async with pool.take():
            pass
    for arguments in ({"warm": 4, "most": 3}, {"warm": -1}, {"most": 0, "warm": 0}, {"starts_per_s": 0}):
        with pytest.raises(UserError):
            await workspaces.open_pool(small_image, **arguments)  # type: ignore[arg-type]


async def test_a_pool_bounds_starts() -> None:
    class Closing:
        alive = True

        async def close(self) -> None:
            pass

    async def start() -> Any:
        return Closing()

    pool = Pool(start, warm=1, most=8, starts_per_s=20)
    await pool.fill()
    begin = time.monotonic()
    for _ in range(5):
        async with pool.take():
            pass
    await pool.close()
    assert time.monotonic() - begin >= 0.15, "five starts, of which one was ahead"
