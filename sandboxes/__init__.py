"""Sandboxes run untrusted code. The contract is `forge_env.core.sandbox`; a backend is a folder or a module.

    async with open_sandbox() as sandbox:
        result = await sandbox.run("print(1 + 1)")  # every run starts in a fresh state
        session = await sandbox.open_session()  # keeps its variables and files until it is closed

Workspaces are machines for agents, from images; their contract is `forge_env.core.workspace`.

    async with open_workspace(image) as workspace:
        result = await workspace.exec("pytest -q", cwd="/testbed")

Importing this package loads no backend.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from forge_env.core.errors import SandboxUnavailable, UserError, nearest
from forge_env.core.sandbox import Sandbox
from forge_env.core.workspace import (
    DEFAULT_WORKSPACE_LIMITS,
    LOOPBACK,
    Network,
    UnpackedImage,
    Workspace,
    WorkspaceLimits,
    Workspaces,
)
from sandboxes.settings import AUTO, WORKSPACE_BACKENDS, chosen, load_backend, with_environment


@asynccontextmanager
async def open_sandbox(name: str = "auto", **settings: Any) -> AsyncIterator[Sandbox]:
    """Open the sandbox `name`, check that it isolates, and close it at the end of the block.

    Args:
        name: "namespace", "docker", "subprocess" (it isolates nothing and must be allowed), or "auto": the backend
            in the environment variable FORGE_ENV_SANDBOX, else namespace if it can isolate, else docker if an engine
            answers.
        settings: keyword arguments of the backend, for example `slots=8`. A setting that is not given is read from the
            environment: FORGE_ENV_SANDBOX_SLOTS=8.

    Raises:
        UserError: no backend or no setting of that name.
        SandboxUnavailable: the backend cannot isolate on this machine; for "auto", with the reason of every backend.
    """
    sandbox = await _open(chosen(name), settings)
    try:
        yield sandbox
    finally:
        await sandbox.close()


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
    reasons = []
    for candidate in WORKSPACE_BACKENDS if backend == "auto" else (backend,):
        opener = load_backend(candidate, WORKSPACE_BACKENDS)
        try:
            workspaces: Workspaces = await opener(**with_environment(candidate, opener, settings))
        except SandboxUnavailable as error:
            if backend != "auto":
                raise
            reasons.append(str(error))
            continue
        try:
            yield workspaces
        finally:
            await workspaces.close()
        return
    raise SandboxUnavailable("Workspaces are not available on this machine. " + " ".join(reasons))


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


async def _open(name: str, settings: dict[str, Any]) -> Sandbox:
    if name != "auto":
        return await _open_backend(name, settings)
    reasons = []
    for backend in AUTO:
        try:
            return await _open_backend(backend, settings)
        except SandboxUnavailable as error:
            reasons.append(str(error))
    raise SandboxUnavailable("No sandbox is available on this machine. " + " ".join(reasons))


async def _open_backend(name: str, settings: dict[str, Any]) -> Sandbox:
    opener = load_backend(name)
    sandbox: Sandbox = await opener(**with_environment(name, opener, settings))
    return sandbox
