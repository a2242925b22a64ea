"""Names that the contract of environments reserves: a class that gives one of them to something else is refused.

A tool, a reward or a number that is named `step` would break an environment, often far from its definition.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from numbers import Real
from typing import Any

from forge_env.core.errors import EnvError, UserError
from forge_env.core.tools import is_tool

_OPTIONAL = dict.fromkeys(("expert", "cheats"), classmethod(lambda cls: None))
_KINDS: tuple[Any, ...] = (property, bool, Real, str, Mapping, (list, tuple))


def check_class(cls: Any, root: type) -> None:
    """Check the names that `root` has in a subclass and its mixins; its parents were checked already."""
    for name in (*vars(root), *inspect.get_annotations(root), *_OPTIONAL):
        owner = next((c for c in cls.__mro__ if name in vars(c)), root)
        if name.startswith("__") or (owner is not cls and (issubclass(owner, root) or issubclass(root, owner))):
            continue
        value, found, own = vars(owner)[name], getattr(cls, name), {**_OPTIONAL, **vars(root)}.get(name)
        is_reward = hasattr(found, "__forge_reward__") or hasattr(found, "__forge_group_reward__")
        mark = "tool" if is_tool(found) else "reward" if is_reward else ""
        if mark or not (name.startswith("_") or _fits(name, value, own)):
            what = f"a {mark}" if mark else "a method of an instance" if inspect.isfunction(value) else f"{value!r:.60}"
            said = f"{owner.__name__}.{name} is {what}, and {root.__name__} reserves this name for {_wanted(own)}"
            raise UserError(f"{said}: call it {name}_ or otherwise")
    for name in {*vars(root), *inspect.get_annotations(root)} & cls.shared.keys():
        raise UserError(f"{cls.__name__}.shared sets {name!r}, a name of {root.__name__}: give it another name")


def _wanted(own: Any) -> str:
    if isinstance(own, classmethod):
        return "a class method, with @classmethod or @staticmethod above it"
    kind = "list" if isinstance(own, tuple) else type(own).__name__
    return "a method" if inspect.isfunction(own) else "itself" if own is None else f"a {kind}"


def _fits(name: str, value: Any, own: Any) -> bool:
    if isinstance(own, classmethod):
        is_method = inspect.isfunction(value) and [*inspect.signature(value).parameters][:1] in (["self"], ["cls"])
        return (name == "limits" and isinstance(value, Mapping)) or (hasattr(value, "__get__") and not is_method)
    if inspect.isfunction(own):
        return not isinstance(value, property) and (callable(value) or hasattr(value, "__get__"))
    if own is None:
        return value is None
    kind: Any = next(kind for kind in _KINDS if isinstance(own, kind))
    return isinstance(value, (property, *(kind if isinstance(kind, tuple) else (kind,))))


def check_instance(env: object, root: type) -> None:
    """Check that the constructor of an environment has called its parent's, and set no method to something else."""
    if hasattr(env, "_use_tools") and "_toolbox" not in vars(env):  # of ToolEnv
        raise EnvError(f"{type(env).__name__}.__init__ does not call super().__init__(): write it as its first line")
    for name, value in vars(env).items():
        if inspect.isfunction(vars(root).get(name)) and not callable(value):
            what = f"{type(env).__name__} sets self.{name} to {value!r:.60}, and {root.__name__}.{name} is a method"
            raise EnvError(f"{what}: call it {name}_ or otherwise")
