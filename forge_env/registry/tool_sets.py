"""Makes tools of a function, a class or a `Tool`; the options of a registry entry override the `@tool` marks."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from forge_env.core.errors import UserError, nearest
from forge_env.core.tools import Tool, ToolOptions, is_tool, make_tool


def derive_tools(source: Any, *, name: str = "", options: Mapping[str, Any]) -> list[Tool]:
    """Return the tools of an object.

    Args:
        source: a function, a class (instantiated without arguments) or a `Tool`.
        options: fields of `ToolOptions` that override the marks.
    """
    if isinstance(source, Tool):
        tools = [source]
    elif isinstance(source, type):
        tools = [make_tool(method, name=n) for n, method in _methods(source).items()]
    elif callable(source):
        tools = [make_tool(source, name=name)]
    else:
        raise UserError(f"{source!r} makes no tools: it is neither a function, nor a class of tools, nor a Tool")
    check_options(options)
    return [dataclasses.replace(tool, options=dataclasses.replace(tool.options, **options)) for tool in tools]


def check_options(options: Mapping[str, Any]) -> None:
    """Check options of tools, before the tools are known."""
    kinds = typing.get_type_hints(ToolOptions)
    del kinds["fatal"]  # exception classes cannot be written in a file or on a command line
    for option, value in options.items():
        if option not in kinds:
            raise UserError(f"tools have no option {option!r}. {nearest(option, kinds)}")
        try:
            TypeAdapter(kinds[option]).validate_python(value, strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise UserError(f"the option {option} of a tool is {value!r}: {reason[:1].lower()}{reason[1:]}") from None


def without_type(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without an annotation, except `self`."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.annotation is p.empty and p.name != "self"]


def _methods(owner: type) -> dict[str, Callable[..., Any]]:
    names = [name for name in dir(owner) if not name.startswith("_")]
    kinds = (FunctionType, staticmethod, classmethod)
    methods = [name for name in names if isinstance(inspect.getattr_static(owner, name), kinds)]
    with_mark = [name for name in methods if is_tool(getattr(owner, name))]
    with_text = [n for n in methods if inspect.getdoc(getattr(owner, n)) and not without_type(getattr(owner, n))]
    selected = with_mark or with_text
    if not selected:
        remedy = "mark its methods with @tool, or give them docstrings and types"
        raise UserError(f"{owner.__qualname__} has no tools: {remedy}")
    try:
        instance = owner()
    except Exception as error:
        raise UserError(f"{owner.__qualname__}() raised {type(error).__name__}: {error}") from error
    return {name: getattr(instance, name) for name in selected}
