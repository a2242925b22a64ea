"""The short names of an installed forge_env: `agents` is `forge_env.agents` if nothing else has the name `agents`.

The wheel installs this module beside `forge_env`, and Python imports it as it starts. Both names give the same module.
A checkout does not need it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

NAMES = ("agents", "contrib", "envs", "sandboxes", "trainers")


class _Packages:
    """Finds `agents`. It is the last finder, so that any other package of the name comes first."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return _spec(name) if name in NAMES else None


class _Modules:
    """Finds `agents.scripted` if `agents` is ours. It is the first finder: Python's own would load the file again."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        top, dot, _ = name.partition(".")
        if not dot or top not in NAMES or sys.modules.get(top) is not sys.modules.get(f"forge_env.{top}", sys):
            return None
        return _spec(name)


class _Loader:
    """Gives the module of the long name to the short one."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        import importlib

        return importlib.import_module(self._spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import of the short name has replaced it

    def get_code(self, name: str) -> CodeType | None:
        """For `python -m`."""
        return self._spec.loader.get_code(self._spec.name)  # type: ignore[union-attr]


def _spec(name: str) -> ModuleSpec | None:
    from importlib.util import find_spec

    spec = find_spec(f"forge_env.{name}")
    if spec is None:
        return None
    is_package = spec.submodule_search_locations is not None
    return ModuleSpec(name, _Loader(spec), origin=spec.origin, is_package=is_package)  # type: ignore[arg-type]


sys.meta_path.insert(0, _Modules)
sys.meta_path.append(_Packages)
