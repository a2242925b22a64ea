"""Registers the environments with Gymnasium as soon as both are imported: `code_exec` is forge_env/CodeExec-v0.

Gymnasium 1 has no entry points for environments: a package registers its environments when it is imported. Importing
Gymnasium takes half a second, which `import forge_env` should not cost. So `import forge_env` registers at once if
Gymnasium is already imported, and otherwise when it is imported later.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType


def is_imported() -> bool:
    """Whether Gymnasium is imported completely."""
    return hasattr(sys.modules.get("gymnasium"), "make_vec")  # which is set last


def register_with_gymnasium(env_names: Callable[[], Iterable[str]]) -> None:
    if is_imported():
        _register_quietly(env_names)
    else:
        sys.meta_path.insert(0, _Finder(env_names))


def _register_quietly(env_names: Callable[[], Iterable[str]]) -> None:
    """Register; a malformed registry file must not break `import gymnasium`: using a name raises the error."""
    from forge_env.core.errors import UserError
    from forge_env.registry.contrib import rows

    try:
        if row := rows("gymnasium").get("register"):
            for name in env_names():
                row.load()(name)
    except UserError:
        pass


class _Finder(importlib.abc.MetaPathFinder):
    """Finds Gymnasium as Python would, once, and registers the environments after its import."""

    def __init__(self, env_names: Callable[[], Iterable[str]]) -> None:
        self._env_names = env_names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register_quietly(self._env_names)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
