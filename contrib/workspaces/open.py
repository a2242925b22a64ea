"""Opens workspaces: machines for agents, from images.

    async with open_workspace(image) as workspace:
        result = await workspace.exec("pytest -q", cwd="/testbed")

Their contract is `contrib.workspaces.contract`. Importing this module loads no backend.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from contrib.workspaces.contract import DEFAULT_WORKSPACE_LIMITS, LOOPBACK, Network, UnpackedImage, WorkspaceLimits
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import UserError, nearest
from sandboxes.settings import WORKSPACE_BACKENDS, open_backend, open_first


@asynccontextmanager
async def open_workspaces(backend: str = "auto", **settings: Any) -> AsyncIterator[Workspaces]:
    """Open the backend of workspaces `backend`, check that it isolates, and close it at the end of the block.

    Args:
        backend: "namespace", "docker", or "auto": the first of them that can isolate.
        settings: keyword arguments of the backend.

    Raises:
        UserError: no backend or no setting of that name.
        SandboxUnavailable: the backend cannot isolate on this machine; for "auto", with the reason of every backend.
    """
    if backend != "auto" and backend not in WORKSPACE_BACKENDS:
        raise UserError(
            f"There is no backend of workspaces {backend!r}. {nearest(backend, [*WORKSPACE_BACKENDS, 'auto'])}"
        )
    if backend == "auto":
        unavailable = "Workspaces are not available on this machine."
        workspaces: Workspaces = await open_first(WORKSPACE_BACKENDS, settings, unavailable)
    else:
        workspaces = await open_backend(WORKSPACE_BACKENDS[backend], settings)
    try:
        yield workspaces
    finally:
        await workspaces.close()


@asynccontextmanager
async def open_workspace(
    image: UnpackedImage,
    backend: str = "auto",
    *,
    limits: WorkspaceLimits = DEFAULT_WORKSPACE_LIMITS,
    network: Network = LOOPBACK,
    **settings: Any,
) -> AsyncIterator[Workspace]:
    """Open one workspace, and a backend for it; both are closed at the end of the block.

    Starting the backend takes longer than starting a workspace: for many workspaces, use `open_workspaces`. Arguments
    and exceptions as for `open_workspaces` and `Workspaces.open`.
    """
    async with open_workspaces(backend, **settings) as workspaces:
        workspace = await workspaces.open(image, limits=limits, network=network)
        try:
            yield workspace
        finally:
            await workspace.close()
