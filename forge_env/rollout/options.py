"""Options of an environment: which parameters are options, and the conversion of text from a command line."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic.errors import PydanticUserError

from forge_env.utils.settings import plain_number, read_value

NOT_OPTIONS = frozenset({"self", "cls", "split", "count", "seed"})
_DATA = (str, int, float, bool, type(None), list, tuple, dict, set, Sequence, Mapping)
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def option_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    if function is object.__init__:
        return []
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.kind in _KINDS and p.name not in NOT_OPTIONS]


def option_types(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of each option of a function by its name; Any if it has none."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError):
        hints = {}
    return {parameter.name: hints.get(parameter.name, Any) for parameter in option_parameters(function)}


def required_options(function: Callable[..., Any]) -> list[str]:
    return [parameter.name for parameter in option_parameters(function) if parameter.default is parameter.empty]


def select_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    names = {parameter.name for parameter in option_parameters(function)}
    return {name: value for name, value in options.items() if name in names}


def is_data(kind: Any) -> bool:
    """Whether the values of an option are data by its type, as `list[str]`, so that each instance has its own."""
    arguments = [argument for argument in typing.get_args(kind) if argument is not ...]
    if arguments and typing.get_origin(kind) is not typing.Literal:
        return all(argument is Any or is_data(argument) for argument in arguments)
    return kind in _DATA or typing.get_origin(kind) is typing.Literal


def convert_option(env: str, name: str, value: Any, kind: Any) -> Any:
    """Convert text, also in a dictionary, to the type of an option; any other value but a number stays as it is."""
    value = plain_number(value)
    if type(value) is dict:
        kinds = [kind, *typing.get_args(kind)]  # of a union
        of_entry = next((typing.get_args(one)[1] for one in kinds if typing.get_origin(one) in (dict, Mapping)), Any)
        if of_entry is not Any:
            return {key: convert_option(env, f"{name}.{key}", entry, of_entry) for key, entry in value.items()}
    if not isinstance(value, str) or kind in (Any, str):
        return value
    try:
        return read_value(value, kind, f"the option {name} of the environment {env}")
    except PydanticUserError:
        return value
