"""Images, and backends of workspaces that stay open for the tests of a file."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.snapshot import Snapshot
from contrib.workspaces.machines.workspace import Workspace
from contrib.workspaces.open import open_workspaces
from contrib.workspaces.tests.made_images import make_python_image, make_small_image
from forge_env.core.errors import SandboxUnavailable
from sandboxes.settings import WORKSPACE_BACKENDS


@pytest.fixture(scope="session")
def small_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnpackedImage]:
    root = tmp_path_factory.mktemp("images") / "small"
    yield make_small_image(root)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def python_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnpackedImage]:
    root = tmp_path_factory.mktemp("images") / "python"
    yield make_python_image(root)
    shutil.rmtree(root, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[*WORKSPACE_BACKENDS])
async def workspaces(request: pytest.FixtureRequest) -> AsyncIterator[Workspaces]:
    """Every backend of this machine; one that is not there is skipped with the reason."""
    async with opened_or_skipped(request.param) as backend:
        yield backend


@contextlib.asynccontextmanager
async def opened_or_skipped(backend: str, **settings: Any) -> AsyncIterator[Workspaces]:
    """Open a backend. A kernel that refuses and an engine that is not there are no failures; an escape from one is."""
    if backend == "docker" and (reason := why_no_engine()):
        pytest.skip(reason)
    try:
        async with open_workspaces(backend, **settings) as workspaces:
            yield workspaces
    except SandboxUnavailable as error:
        if backend == "docker":
            raise
        pytest.skip(str(error))


def why_no_engine() -> str:
    if reason := os.environ.get("FORGE_ENV_NO_DOCKER"):
        return reason
    try:
        import docker

        with contextlib.closing(docker.from_env(timeout=30)) as client:
            client.ping()
    except Exception as error:
        return f"no Docker engine answers: {error}"
    return ""


@contextlib.asynccontextmanager
async def open_one(
    workspaces: Workspaces, files: UnpackedImage | Snapshot, **settings: Any
) -> AsyncIterator[Workspace]:
    """A workspace until the end of the block."""
    workspace = await workspaces.open(files, **settings)
    try:
        yield workspace
    finally:
        await workspace.close()


@pytest_asyncio.fixture(loop_scope="module")
async def workspace(workspaces: Workspaces, small_image: UnpackedImage) -> AsyncIterator[Workspace]:
    async with open_one(workspaces, small_image) as workspace:
        yield workspace


def files_of(root: Path) -> dict[str, tuple[int, int, int, float]]:
    """Return what a change of an image would change."""
    entries = {}
    for base, folders, names in os.walk(root):
        for name in (*folders, *names):
            info = os.lstat(os.path.join(base, name))
            entries[os.path.join(base, name)] = (info.st_mode, info.st_uid, info.st_size, info.st_mtime)
    return entries
