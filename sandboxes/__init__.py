"""Sandboxes: places where untrusted code runs. The contract is `forge_env.sandbox`; each backend is one module.

    async with open_sandbox() as sandbox:
        result = await sandbox.run("print(1 + 1)")  # in a fresh state
        session = await sandbox.open_session()  # keeps its variables and files until it is closed

Importing this package loads no backend.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from forge_env.errors import UserError, nearest
from forge_env.sandbox import Sandbox

_BACKENDS = {"namespace": "sandboxes.namespace:open_namespace_sandbox"}
_AUTO = "namespace"


@asynccontextmanager
async def open_sandbox(name: str = "auto", **settings: Any) -> AsyncIterator[Sandbox]:
    """Open the sandbox `name`, prove that it isolates, and close it at the end of the block.

    Args:
        name: "namespace", or "auto", which takes the environment variable FORGE_ENV_SANDBOX where it is set.
        settings: keyword arguments of the backend, for example `slots=8`.

    Raises:
        UserError: no backend or no setting of that name.
        SandboxUnavailable: the backend cannot isolate on this machine.
    """
    backend = _load_backend(name)
    try:
        opening = backend(**settings)
    except TypeError as error:
        raise UserError(f"sandbox {name!r} does not take these settings: {error}") from error
    sandbox: Sandbox = await opening
    try:
        yield sandbox
    finally:
        await sandbox.close()


def _load_backend(name: str) -> Any:
    if name == "auto":
        name = os.environ.get("FORGE_ENV_SANDBOX") or _AUTO
    if name == "auto":
        name = _AUTO
    if name not in _BACKENDS:
        raise UserError(f"There is no sandbox named {name!r}. {nearest(name, [*_BACKENDS, 'auto'])}")
    module, function = _BACKENDS[name].split(":")
    return getattr(importlib.import_module(module), function)
