"""Names of environments. The registry holds strings "module:Class", imported only when they are needed."""

from __future__ import annotations

import importlib
import operator
from typing import TYPE_CHECKING, Any

from forge_env.errors import UserError, nearest

if TYPE_CHECKING:
    from forge_env.env import Env

_ENVS: dict[str, str] = {
    "code_exec": "envs.code_exec:CodeExec",
    "math": "envs.math:Math",
}


def load(target: str) -> Any:
    """Import the object named "module:attribute".

    Raises:
        UserError: when the target is malformed, or the module or the attribute does not exist.
    """
    module_name, separator, attribute = target.partition(":")
    if not separator or not attribute or not module_name:
        raise UserError(f"{target!r} is not a target: write it as 'module:attribute', for example 'envs.math:Math'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise UserError(f"{target!r} needs the package {error.name!r}, which is not installed") from error
        raise UserError(f"{target!r}: there is no module {module_name!r}") from error
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        raise UserError(f"{target!r}: module {module_name} has no attribute {attribute!r}") from None


def register(name: str, target: str | type[Env]) -> None:
    """Give an environment class (or its "module:Class") a name, in this process.

    Raises:
        UserError: when the name is taken by another class.
    """
    text = target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"
    if _ENVS.get(name, text) != text:
        raise UserError(f"the environment name {name!r} is taken by {_ENVS[name]}; choose another name")
    _ENVS[name] = text


def env_names() -> list[str]:
    return sorted(_ENVS)


def env_class(name: str) -> type[Env]:
    """Return the class of a registered name, or of a "module:Class".

    Raises:
        UserError: for an unknown name, with the nearest one.
    """
    if ":" not in name and name not in _ENVS:
        raise UserError(f"there is no environment {name!r}. {nearest(name, _ENVS)}")
    return load(_ENVS.get(name, name))
