"""Registers the environments with Gymnasium, as soon as both packages are imported.

Gymnasium 1 has no entry points for environments: a package registers its environments when it is imported. Importing
Gymnasium takes half a second, which `import forge_env` should not cost. So `import forge_env` registers at once if
Gymnasium is already imported, and otherwise when it is imported later.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType


def register_all() -> list[str]:
    """Register every named environment with Gymnasium; returns the ids.

    Raises:
        UserError: when two environments have the same id, or a registry file is malformed.
    """
    from forge_env.registry.gymnasium_ids import register_env
    from forge_env.registry.registry import env_names

    return [register_env(name) for name in env_names()]


def register_with_gymnasium() -> None:
    """Register every environment now if Gymnasium is imported, else when it is imported."""
    if hasattr(sys.modules.get("gymnasium"), "make_vec"):  # imported completely; the attribute is set last
        _register_quietly()
    else:
        sys.meta_path.insert(0, _Finder())


def _register_quietly() -> None:
    """Register; a malformed registry file must not break `import gymnasium`: using a name raises the error."""
    from forge_env.core.errors import UserError

    try:
        register_all()
    except UserError:
        pass


class _Finder(importlib.abc.MetaPathFinder):
    """Finds Gymnasium as Python would, once, and registers the environments after its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module with its normal loader, and then registers the environments."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register_quietly()
