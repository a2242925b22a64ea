"""Sandboxes run untrusted code. The contract is `forge_env.core.sandbox`; a backend is a folder or a module.

    async with open_sandbox() as sandbox:
        result = await sandbox.run("print(1 + 1)")  # every run starts in a fresh state
        session = await sandbox.open_session()  # keeps its variables and files until it is closed

Importing this package loads no backend.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from forge_env.core.sandbox import Sandbox
from sandboxes.settings import AUTO, BACKENDS, open_backend, open_first, resolve_name


@asynccontextmanager
async def open_sandbox(name: str = "auto", **settings: Any) -> AsyncIterator[Sandbox]:
    """Open the sandbox `name`, check that it isolates, and close it at the end of the block.

    Args:
        name: of `sandboxes.settings.BACKENDS`: "namespace", or what contrib adds; or "auto": the backend in the
            environment variable FORGE_ENV_SANDBOX, else the first that can isolate.
        settings: keyword arguments of the backend, for example `slots=8`. A setting that is not given is read from the
            environment: FORGE_ENV_SANDBOX_SLOTS=8.

    Raises:
        UserError: no backend or no setting of that name.
        SandboxUnavailable: the backend cannot isolate on this machine; for "auto", with the reason of every backend.
    """
    name = resolve_name(name)
    if name == "auto":
        automatic = {backend: BACKENDS[backend] for backend in AUTO}
        sandbox = await open_first(automatic, settings, "No sandbox is available on this machine.")
    else:
        sandbox = await open_backend(BACKENDS[name], settings)
    try:
        yield sandbox
    finally:
        await sandbox.close()
