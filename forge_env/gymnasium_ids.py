"""The ids that forge environments have in Gymnasium: `code_exec` is "forge_env/CodeExec-v0".

Gymnasium has no entry points for packages that bring environments: they register themselves when they are imported. It
takes half a second to import, which whoever only writes a tool should not pay. So `import forge_env` registers its
environments when Gymnasium is there already, and else when it is imported later.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Sequence
from types import ModuleType

NAMESPACE = "forge_env"


def gymnasium_id(name: str) -> str:
    """Return the Gymnasium id of an environment's name.

    >>> gymnasium_id("code_exec")
    'forge_env/CodeExec-v0'
    """
    words = [word for word in re.split(r"[\W_]+", name) if word]
    return f"{NAMESPACE}/{''.join(word[0].upper() + word[1:] for word in words)}-v0"


def register_env(name: str) -> str:
    """Register one environment with Gymnasium, by its name, and return its id; nothing of it is imported.

    Raises:
        UserError: when another environment has the same id.
    """
    import gymnasium

    from forge_env.errors import UserError

    gym_id = gymnasium_id(name)
    taken = gymnasium.registry.get(gym_id)
    if taken is None:
        turns = gymnasium.envs.registration.WrapperSpec("TurnLimit", "forge_env.gymnasium_env:TurnLimit", kwargs={})
        entry_point = "forge_env.gymnasium_env:SyncEnv"
        gymnasium.register(gym_id, entry_point=entry_point, additional_wrappers=(turns,), kwargs={"env": name})
    elif taken.kwargs.get("env") != name:
        raise UserError(f"{name!r} and {taken.kwargs.get('env')!r} would both be {gym_id} in Gymnasium: rename one")
    return gym_id


def register_all() -> list[str]:
    """Register every environment that has a name with Gymnasium; returns the ids.

    Raises:
        UserError: when two would have the same id, or a registry file is malformed.
    """
    from forge_env.registry import env_names

    return [register_env(name) for name in env_names()]


def register_with_gymnasium() -> None:
    """Register every environment now where Gymnasium is imported, and else as soon as it is."""
    if is_imported():
        _register_quietly()
    else:
        sys.meta_path.insert(0, _Finder())


def is_imported() -> bool:
    """Whether Gymnasium is imported, and not just being imported."""
    return hasattr(sys.modules.get("gymnasium"), "make_vec")


def _register_quietly() -> None:
    """A registry file that cannot be read must not keep anybody from importing Gymnasium; using the name says it."""
    from forge_env.errors import UserError

    try:
        register_all()
    except UserError:
        pass


class _Finder(importlib.abc.MetaPathFinder):
    """Finds Gymnasium once, as Python would, and has the environments registered after it is loaded."""

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
    """The module's own loader, and the registration after it."""

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
