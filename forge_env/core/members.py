"""Names that the contract of environments reserves: a tool or a number that is named `step` would break it later."""

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
    for name, own in {**dict.fromkeys(inspect.get_annotations(root)), **_OPTIONAL, **vars(root)}.items():
        owner = next((c for c in cls.__mro__ if name in vars(c)), root)
        if name.startswith("__") or (owner is not cls and (issubclass(owner, root) or issubclass(root, owner))):
            continue
        value, member = vars(owner)[name], getattr(cls, name)
        is_reward = hasattr(member, "__forge_reward__") or hasattr(member, "__forge_group_reward__")
        mark, purpose = "a tool" if is_tool(member) else "a reward" if is_reward else "", _purpose(name, value, own)
        if mark or (purpose and not name.startswith("_")):
            what = mark or ("a method of an instance" if inspect.isfunction(value) else f"{value!r:.60}")
            sentence = f"{owner.__name__}.{name} is {what}, and {root.__name__} reserves this name for"
            raise UserError(f"{sentence} {purpose or _purpose(name, ..., own)}: call it {name}_ or otherwise")


def _purpose(name: str, value: Any, own: Any) -> str:
    """What a name is reserved for, if a value is something else; "" if it fits."""
    is_method = inspect.isfunction(value) and [*inspect.signature(value).parameters][:1] in (["self"], ["cls"])
    is_mapping = name == "limits" and isinstance(value, Mapping)
    if isinstance(own, classmethod):
        fits = is_mapping or (hasattr(value, "__get__") and not is_method)
        return "" if fits else "a class method, with @classmethod or @staticmethod above it"
    if inspect.isfunction(own):
        fits = not isinstance(value, property) and (callable(value) or hasattr(value, "__get__"))
        return "" if fits else "a method"
    if own is None:
        return "" if value is None else "itself"
    kind = next((kind for kind in _KINDS if isinstance(own, kind)), type(own))
    kinds = (property, *(kind if isinstance(kind, tuple) else (kind,)))
    return "" if isinstance(value, kinds) else f"a {'list' if isinstance(own, tuple) else type(own).__name__}"


def check_instance(env: object, root: type) -> None:
    """Check that the constructor of an environment has called its parent's, and set no method to something else."""
    if hasattr(env, "_use_tools") and "_toolbox" not in vars(env):  # of ToolEnv
        raise EnvError(f"{type(env).__name__}.__init__ does not call super().__init__(): write it as its first line")
    for name, value in vars(env).items():
        if inspect.isfunction(vars(root).get(name)) and not callable(value):
            what = f"{type(env).__name__} sets self.{name} to {value!r:.60}, and {root.__name__}.{name} is a method"
            raise EnvError(f"{what}: call it {name}_ or otherwise")
