"""Tools out of a function, a class or a `Tool`, with the options of a registry entry over the `@tool` marks."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from forge_env.core.errors import UserError, nearest
from forge_env.core.tools import Tool, ToolOptions, is_tool, make_tool


def derive_tools(found: Any, *, name: str = "", options: Mapping[str, Any]) -> list[Tool]:
    """Return the tools that an object gives.

    Args:
        found: a function, a class (made without arguments) or a `Tool`.
        name: of a function's tool; its own by default.
        options: fields of `ToolOptions` that override its marks.

    Raises:
        UserError: when it makes no tools, or an option is wrong.
    """
    if isinstance(found, Tool):
        tools = [found]
    elif isinstance(found, type):
        tools = [make_tool(method, name=n) for n, method in _methods(found).items()]
    elif callable(found):
        tools = [make_tool(found, name=name)]
    else:
        raise UserError(f"{found!r} makes no tools: it is neither a function, nor a class of tools, nor a Tool")
    check_options(options)
    return [dataclasses.replace(tool, options=dataclasses.replace(tool.options, **options)) for tool in tools]


def check_options(options: Mapping[str, Any]) -> None:
    """Check options by themselves, before it is known what they are options of.

    Raises:
        UserError: for an unknown one, with the nearest, or a value of the wrong type.
    """
    kinds = typing.get_type_hints(ToolOptions)
    del kinds["fatal"]  # classes of exceptions have no place in a file or on a command line
    for option, value in options.items():
        if option not in kinds:
            raise UserError(f"tools have no option {option!r}. {nearest(option, kinds)}")
        try:
            TypeAdapter(kinds[option]).validate_python(value, strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise UserError(f"the option {option} of a tool is {value!r}: {reason[:1].lower()}{reason[1:]}") from None


def untyped(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters without an annotation, other than `self`."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.annotation is p.empty and p.name != "self"]


def _methods(owner: type) -> dict[str, Callable[..., Any]]:
    names = [name for name in dir(owner) if not name.startswith("_")]
    routines = (staticmethod, classmethod)
    named = [n for n in names if inspect.isfunction(f := inspect.getattr_static(owner, n)) or isinstance(f, routines)]
    chosen = [n for n in named if is_tool(getattr(owner, n))] or [
        n for n in named if inspect.getdoc(getattr(owner, n)) and not untyped(getattr(owner, n))
    ]
    if not chosen:
        raise UserError(
            f"{owner.__qualname__} has no tools: mark its methods with @tool, or give them docstrings and types"
        )
    try:
        instance = owner()
    except Exception as error:
        raise UserError(f"{owner.__qualname__}() raised {type(error).__name__}: {error}") from error
    return {name: getattr(instance, name) for name in chosen}
