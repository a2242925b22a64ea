"""The choice of a sandbox and its settings: by argument, else by environment variable, else by default."""

from __future__ import annotations

import importlib
import inspect
import os
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from forge_env.core.errors import SandboxUnavailable, UserError, nearest
from forge_env.registry.contrib import Row, rows
from forge_env.utils.settings import read_value

Opener = Callable[..., Awaitable[Any]]

BACKENDS = {"namespace": Row("namespace", "sandboxes.host.namespace:open_namespace_sandbox"), **rows("sandboxes")}
AUTO = tuple(name for name, row in BACKENDS.items() if row.after or name == "namespace")
"""Backends that "auto" tries, in order; never one without isolation, which comes behind no other."""
WORKSPACE_BACKENDS = dict(sorted(rows("workspaces").items(), key=lambda item: item[1].after))
"""In the order of "auto"."""
_VARIABLE = "FORGE_ENV_SANDBOX"


def resolve_name(name: str) -> str:
    """Return `name`, or for "auto" the value of FORGE_ENV_SANDBOX. Raises UserError for an unknown name."""
    if name == "auto":
        name = os.environ.get(_VARIABLE) or "auto"
    if name != "auto" and name not in BACKENDS:
        raise UserError(f"There is no sandbox named {name!r}. {nearest(name, [*BACKENDS, 'auto'])}")
    return name


async def open_backend(row: Row, settings: dict[str, Any]) -> Any:
    """Open a backend. Raises SandboxUnavailable if a package is not installed, or it cannot isolate here."""
    opener = load_backend(row)
    return await opener(**with_environment(row.name, opener, settings))


async def open_first(rows: Mapping[str, Row], settings: dict[str, Any], unavailable: str) -> Any:
    """Open the first backend that can isolate. Raises SandboxUnavailable: what there is not, and why, by backend."""
    reasons = [unavailable]
    for row in rows.values():
        try:
            return await open_backend(row, settings)
        except SandboxUnavailable as error:
            reasons.append(str(error))
    raise SandboxUnavailable(" ".join(reasons))


def load_backend(row: Row) -> Opener:
    module, function = row.target.split(":")
    try:
        opener: Opener = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise SandboxUnavailable(
            f"{row.name} sandbox: it needs the package {error.name}, which is not installed; "
            f"pip install 'forge-env[{row.extra}]'."
        ) from error
    return opener


def with_environment(name: str, opener: Opener, settings: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(opener).parameters
    for setting in settings:
        if setting not in parameters and setting == "packages":
            raise UserError(
                f"packages is {settings[setting]!r}, but code in the {name} sandbox imports the standard library only: "
                "open the namespace sandbox, or leave packages out."
            )
        if setting not in parameters:
            raise UserError(f"Sandbox {name!r} has no setting {setting!r}. {nearest(setting, parameters)}")
    kinds = typing.get_type_hints(opener)
    from_environment = {}
    for setting in parameters:
        variable = f"{_VARIABLE}_{setting.upper()}"
        if setting not in settings and (text := os.environ.get(variable)):
            from_environment[setting] = read_value(text, kinds[setting], variable)
    return settings | from_environment
