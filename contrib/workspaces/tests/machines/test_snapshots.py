"""Snapshots: what is kept, what goes its own way afterwards, and what is freed."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.workspace import Workspace
from contrib.workspaces.tests.machines.conftest import files_of
from forge_env.core.errors import UserError

pytestmark = pytest.mark.asyncio(loop_scope="module")
LISTING = "cd /data; for f in $(ls -A | sort); do echo $f: $(cat $f 2>&1); done"


async def test_a_fork_has_the_files_and_goes_its_own_way(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    before = files_of(small_image.root)
    first = await workspaces.open(small_image)
    await first.exec(
        "mkdir /data; echo one > /data/a; echo two > /data/b; rm -r /home /bin/wc; mkdir /home; echo new > /home/x"
    )
    snapshot = await first.snapshot()
    second = await workspaces.open(snapshot)
    assert snapshot.image == small_image == second.image
    try:
        for workspace, text in ((first, "first"), (second, "second")):
            assert (await workspace.exec(LISTING)).stdout == "a: one\nb: two\n"
            assert (await workspace.exec("ls -A /home; cat /home/x; ls /bin/wc")).stdout == "x\nnew\n"
            await workspace.exec(f"echo {text} > /data/a; rm /data/b; mv /data/a /data/c")
        assert (await first.exec(LISTING)).stdout == "c: first\n"
        assert (await second.exec(LISTING)).stdout == "c: second\n"
        third = await workspaces.open(snapshot)
        assert (await third.exec(LISTING)).stdout == "a: one\nb: two\n"
        await snapshot.close()
        await snapshot.close()
        assert (await third.exec(LISTING)).stdout == "a: one\nb: two\n"
        await third.close()
        with pytest.raises(UserError, match="snapshot is closed"):
            await workspaces.open(snapshot)
    finally:
        await first.close()
        await second.close()
    assert files_of(small_image.root) == before


async def test_a_snapshot_ends_processes_and_keeps_owners(workspace: Workspace, workspaces: Workspaces) -> None:
    shell = await workspace.open_shell()
    await shell.run("x=1; sleep 600 & mkdir -m 700 /own; echo x > /own/x; chmod 640 /own/x")
    if os.geteuid() == 0:
        await workspace.exec("chown -R 1000:2000 /own")
    snapshot = await workspace.snapshot()
    fork = await workspaces.open(snapshot)
    try:
        for opened in (workspace, fork):
            expected = "640 1000 2000\n" if os.geteuid() == 0 else "640 0 0\n"
            assert (await opened.exec("stat -c '%a %u %g' /own/x")).stdout == expected
        result = await shell.run("echo $x; pwd")
        assert result.state_lost and result.stdout == "\n/\n"
    finally:
        await fork.close()
        await snapshot.close()


def kept(number: int) -> str:
    return " ".join(sorted(str(n) for n in (number - 1, number) if n >= 0))


async def test_a_chain_of_many_snapshots(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    workspace = await workspaces.open(small_image)
    snapshots = []
    # Of overlays of ours, all folders have to fit into one page of options.
    length = 70 if workspaces.capabilities.backend == "namespace" else 3
    for number in range(length):
        assert (await workspace.exec(f"echo {number} > /{number}; rm -f /{number - 2}; echo {number} > /last")).ok
        snapshots.append(await workspace.snapshot())
    for number in (0, length // 2, length - 1):
        fork = await workspaces.open(snapshots[number])
        assert (await fork.exec("cat /last; cd /; echo [0-9]*")).stdout == f"{number}\n{kept(number)}\n"
        await fork.close()
    for snapshot in snapshots:
        await snapshot.close()
    assert (await workspace.exec("cat /last")).stdout == f"{length - 1}\n"
    await workspace.close()


async def test_what_no_one_needs_is_freed(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    async def held() -> int:
        """Layers that the server has mounted, or images that the engine has for this process."""
        if workspaces.capabilities.backend == "namespace":
            return Path(f"/proc/{workspaces._server.pid}/mountinfo").read_text().count("/sys/layers")  # type: ignore[attr-defined]
        while tasks := set(workspaces._tasks):  # type: ignore[attr-defined]
            await asyncio.wait(tasks)
        return own_images()

    await (await workspaces.open(small_image)).close()  # the server has read what was sent before
    before, families = await held(), dict(workspaces._families)  # type: ignore[attr-defined]
    workspace = await workspaces.open(small_image)
    snapshot = await workspace.snapshot()
    second = await workspace.snapshot()
    assert await held() == before + 2
    await snapshot.close()
    await workspace.close()
    fork = await workspaces.open(second)
    await second.close()
    # In a container, a workspace does not go on from its snapshot, so that the second one does not need the first.
    needed = 2 if workspaces.capabilities.backend == "namespace" else 1
    assert await held() == before + needed, "the fork can be a snapshot again"
    await fork.close()
    probe = await workspaces.open(small_image)  # the server has read what was sent before
    await probe.close()
    assert await held() == before and workspaces._families == families  # type: ignore[attr-defined]


def own_images() -> int:
    """How many images the Docker engine has that this process has made for itself."""
    import docker

    from contrib.docker.owner import LABEL

    named = [f"{LABEL}.pid={os.getpid()}"]
    with contextlib.closing(docker.from_env(timeout=30)) as client:
        return len(client.api.images(quiet=True, all=True, filters={"label": named}))
