"""What only the docker backend of workspaces does: images in the engine, and what a killed owner leaves there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from contrib.docker.owner import LABEL
from contrib.docker.workspace_images import REPOSITORY
from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.open import open_workspaces
from contrib.workspaces.tests.machines.conftest import opened_or_skipped
from forge_env.core.errors import SandboxUnavailable
from tests.helpers.packages import needs
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs("docker")]
ROOT = Path(__file__).parents[3]

OWNER = """
import asyncio, sys
from pathlib import Path
from contrib.workspaces.contract import (UnpackedImage)
from contrib.workspaces.open import open_workspaces

async def main():
    image = UnpackedImage(root=Path(sys.argv[1]))
    async with open_workspaces("docker") as workspaces:
        opened = await asyncio.gather(*(workspaces.open(image) for _ in range(int(sys.argv[2]))))
        await opened[0].exec("setsid sleep 600 &")
        snapshot = await opened[0].snapshot()
        opened.append(await workspaces.open(snapshot))
        print("opened", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workspaces() -> AsyncIterator[Workspaces]:
    async with opened_or_skipped("docker") as opened:
        yield opened


@pytest.fixture
def engine(workspaces: Workspaces) -> Iterator[Any]:
    import docker

    with contextlib.closing(docker.from_env(timeout=60)) as client:
        client.api.headers["Connection"] = "close"  # no descriptor stays open between two calls
        yield client.api


def containers(engine: Any, pid: int) -> list[str]:
    return [made["Id"] for made in engine.containers(all=True, filters={"label": f"{LABEL}.pid={pid}"})]


async def test_an_image_is_imported_once_by_its_digest(
    workspaces: Workspaces, engine: Any, small_image: UnpackedImage, tmp_path: Path
) -> None:
    digest = hashlib.sha256(os.urandom(16)).hexdigest()
    image = replace(small_image, digest=f"sha256:{digest}")
    name = f"{REPOSITORY}:{digest[:32]}"
    try:
        await (await workspaces.open(image)).close()
        first = engine.inspect_image(name)
        assert first["Config"]["Labels"] == {"forge-env.image": f"sha256:{digest}"}
        async with open_workspaces("docker") as others:
            # The folder is empty, so what runs comes from the first import.
            workspace = await others.open(replace(image, root=tmp_path))
            assert (await workspace.exec("cat /etc/group")).ok
            await workspace.close()
        assert engine.inspect_image(name)["Id"] == first["Id"], "the end of a backend leaves it"
    finally:
        engine.remove_image(name)


async def test_an_engine_never_waits_for_a_pipe_of_a_workspace(
    workspaces: Workspaces, small_image: UnpackedImage
) -> None:
    """The engine itself reads /etc/passwd of an image when it starts a container."""
    workspace = await workspaces.open(small_image)
    made = await workspace.exec(
        "rm /etc/passwd /etc/group; mkfifo /etc/passwd; mkdir /pipes; mkfifo /pipes/x; ln -s /pipes/x /etc/group"
    )
    assert made.ok, made
    snapshot = await workspace.snapshot()
    fork = await workspaces.open(snapshot)
    assert (await fork.exec("ls /etc/passwd /etc/group")).exit_code != 0
    for opened in (fork, workspace, snapshot):
        await opened.close()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
async def test_auto_takes_docker_where_the_kernel_refuses(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from contrib.workspaces.contract import UnpackedImage\n"
        "from contrib.workspaces.open import open_workspace\n"
        "async def main():\n"
        "    async with open_workspace(UnpackedImage(root=Path(sys.argv[1]))) as workspace:\n"
        "        print(workspace.capabilities.backend, (await workspace.exec('echo on')).stdout)\n"
        "asyncio.run(main())\n"
    )
    weak = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", sys.executable, "-c", code]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [*weak, str(small_image.root)]
    done = await asyncio.to_thread(
        subprocess.run, command, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout.split() == ["docker", "on"], done.stderr


def kill_an_owner(engine: Any, image: UnpackedImage, count: int) -> int:
    """Start an owner of workspaces in containers, kill it, and wait until nothing of it runs; return its process id."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", OWNER, str(image.root), str(count)]
    with subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "opened\n"
        assert len(containers(engine, owner.pid)) == count + 1
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not containers(engine, owner.pid), "the end of all containers")
    return owner.pid


async def check_nothing_is_left(engine: Any, owner: int) -> None:
    async with open_workspaces("docker"):  # nobody was left to remove the images: the next one does
        pass
    assert engine.images(all=True, filters={"label": f"{LABEL}.pid={owner}"}) == []
    assert not [path for path in Path(tempfile.gettempdir()).glob("forge_env-link-*") if f"-{owner}-" in path.name]
    assert not [path for path in Path("/sys/fs/cgroup").glob("*/forge_env-*") if f"-{owner}-" in path.name]


async def test_a_killed_owner_leaves_nothing(engine: Any, small_image: UnpackedImage) -> None:
    await check_nothing_is_left(engine, kill_an_owner(engine, small_image, 2))


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_forty_workspaces_with_killed_owners_leave_nothing(engine: Any, small_image: UnpackedImage) -> None:
    for _ in range(4):
        await check_nothing_is_left(engine, kill_an_owner(engine, small_image, 10))


async def test_closing_leaves_nothing(engine: Any, small_image: UnpackedImage) -> None:
    before = containers(engine, os.getpid()), len(os.listdir("/proc/self/fd"))
    images = len(engine.images(all=True, filters={"label": f"{LABEL}.pid={os.getpid()}"}))
    async with open_workspaces("docker") as workspaces:
        opened = [await workspaces.open(small_image) for _ in range(2)]
        shell = await opened[0].open_shell()
        await shell.run("sleep 600 &")
        snapshot = await opened[0].snapshot()
        await workspaces.open(snapshot)
    assert (containers(engine, os.getpid()), len(os.listdir("/proc/self/fd"))) == before
    assert len(engine.images(all=True, filters={"label": f"{LABEL}.pid={os.getpid()}"})) == images


async def test_an_engine_that_does_not_see_our_folders_is_refused(
    workspaces: Workspaces, small_image: UnpackedImage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As an engine on another machine would."""
    from contrib.docker import workspace_container

    gone = tmp_path / "gone"
    monkeypatch.setattr(workspace_container, "GUEST", gone)
    with pytest.raises(SandboxUnavailable, match="does not see this machine's folders"):
        await workspaces.open(small_image)
