"""Packages that a sandbox shows: the value that the backends pass on, and the error for one that cannot be imported.

Standard library only: the agent in a container imports this, too. `find_packages.py` finds the files.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from forge_env.core.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """Installed files that a sandbox shows, and modules that it imports at its start."""

    paths: Sequence[tuple[str, str]] = ()
    """Pairs of a real path and the relative path at which it is shown; no path is inside another."""
    imports: Sequence[str] = ()
    """Modules of the named packages, to be imported."""


NO_PACKAGES = Packages()


def cannot_import(module: str, error: str, missing: str | None, imports: Collection[str]) -> UserError:
    """Return the error for a module that cannot be imported in the sandbox.

    Args:
        imports: the modules of the named packages; others come from the setting `preimport`.
    """
    setting = "packages" if module in imports else "preimport"
    what = f"{module!r} of {setting} cannot be imported in the sandbox"
    top = (missing or "").partition(".")[0]
    if not top or top == module:
        return UserError(f"{what}: {error}; leave it out of {setting}.")
    if not is_installed(top):
        remedy = f"install that, or leave {module!r} out of {setting}"
        return UserError(f"{what}: it needs the module {missing!r}, which is not installed here; {remedy}.")
    reason = "which its metadata does not require"
    return UserError(f"{what}: it needs the module {missing!r}, {reason}; add {top!r} to packages.")


def is_installed(module: str) -> bool:
    try:
        return module.isidentifier() and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
