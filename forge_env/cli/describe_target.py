"""Describes a target: imports it and returns its tools, its options, and what is wrong with it."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from forge_env.core.env import Env
from forge_env.core.errors import ForgeError, UserError
from forge_env.core.tools import Tool
from forge_env.registry.contrib import Row, tool_source
from forge_env.registry.registry import is_env, load_entry
from forge_env.registry.registry_file import Entry
from forge_env.registry.tool_sets import derive_tools, without_type
from forge_env.rollout.options import option_parameters, option_types
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.exits import Terminated
from forge_env.utils.targets import load, split_target


def describe(
    entry: Entry, kind: Literal["auto", "env", "tools"] = "auto", *, to_register: bool = False
) -> dict[str, Any]:
    """Import the target of an entry and describe it.

    A tool without a docstring, or with a parameter without a type, works: the model is told less. Only a target that is
    to be registered is refused for it; it is for others as well.

    Returns:
        name: the entry's, or the default name of the target.
        kind: "env" or "tools".
        description: the first line of its docstring.
        file, line: the place of its definition.
        tools: name, description, parameters (JSON schema) and options of each tool.
        options: of an environment: name, type and default of each.
        notes: what the model is not told of the tools.
    """
    try:
        if source := tool_source(entry.target):
            return _describe_source(entry, kind, source)
        return _describe(entry, kind, to_register)
    except (ForgeError, KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:
        raise UserError(f"{entry.target!r} cannot be described: {type(error).__name__}: {error}") from error


def _describe(entry: Entry, kind: str, to_register: bool) -> dict[str, Any]:
    target_object, target = load_entry(entry), entry.target
    problems, options, tools = [], [], []
    # A class with the methods of an environment is one: its author is told what is missing.
    resembles_env = isinstance(target_object, type) and (
        issubclass(target_object, Env) or (hasattr(target_object, "reset") and hasattr(target_object, "step"))
    )
    if kind == "env" or (kind == "auto" and resembles_env):
        if is_env(target_object):
            methods = ("reset", "step", "tasks")
            lacks = [n for n in methods if inspect.getattr_static(target_object, n) is inspect.getattr_static(Env, n)]
            where = _file_and_line(target_object)
            problems = [f"{target_object.__qualname__} has no {name}() ({where})" for name in lacks]
            options = _options(target_object)
            tools = list(target_object._tools.values()) if issubclass(target_object, ToolEnv) else []
        else:
            name = getattr(target_object, "__qualname__", target_object)
            problems = [f"{name!r} is not a subclass of forge_env.Env or forge_env.ToolEnv"]
    elif is_env(target_object):
        raise UserError(f"{target!r} is an environment, not a set of tools: leave --kind out, or say --kind env")
    else:
        tools = derive_tools(target_object, name=entry.name, options=entry.options)
    untold = [problem for tool in tools for problem in _tool_problems(tool)]
    if problems or (untold and to_register):
        refusal = "cannot be registered" if to_register else "is no environment"
        raise UserError(f"{target!r} {refusal}: {'; '.join(problems + untold)}")
    name, kind = entry.name or _default_name(target, target_object), "env" if is_env(target_object) else "tools"
    return _data(name, kind, _first_line(target_object), _definition(target_object), tools, options, untold)


def _describe_source(entry: Entry, kind: str, source: Row) -> dict[str, Any]:
    if kind == "env":
        raise UserError(
            f"{entry.target!r} is a source of tools, not an environment: leave --kind out, or say --kind tools"
        )
    label, tools = asyncio.run(source.load().described(entry.target))
    return _data(entry.name or label, "tools", f"{len(tools)} tools of {entry.target}", ("", 0), tools)


def _data(
    name: str,
    kind: str,
    description: str,
    place: tuple[str, int],
    tools: Sequence[Tool],
    options: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    data = {"name": name, "kind": kind, "description": description, "file": place[0], "line": place[1]}
    return data | {"tools": [*map(_tool_data, tools)], "options": [*options], "notes": [*notes]}


def _tool_problems(tool: Tool) -> list[str]:
    where = f" ({_file_and_line(tool.function)})"
    problems = [] if tool.description else [f"the tool {tool.name} has no docstring, which the model reads{where}"]
    if names := without_type(tool.function):
        problems.append(f"the tool {tool.name} has parameters without a type: {', '.join(names)}{where}")
    return problems


def _tool_data(tool: Tool) -> dict[str, Any]:
    options = {f.name: getattr(tool.options, f.name) for f in dataclasses.fields(tool.options)}
    options["fatal"] = [error.__name__ for error in tool.options.fatal]
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters), "options": options}


def _options(env: type[Env]) -> list[dict[str, Any]]:
    options: dict[str, dict[str, Any]] = {}
    shared = [load(target) for target in env.shared.values()]
    for function in (*shared, env.tasks, env.__init__):
        for parameter in option_parameters(function):
            kinds = typing.get_args(option_types(function)[parameter.name])
            if any(Tool in (kind, *typing.get_args(kind)) for kind in kinds):
                continue  # only code has such values
            description = {"name": parameter.name, "type": _type(function, parameter)} | _default(parameter)
            if description["required"] or parameter.name not in options:
                options[parameter.name] = description
    return list(options.values())


def _type(function: Callable[..., Any], parameter: inspect.Parameter) -> str:
    if parameter.annotation is parameter.empty:
        return "any"
    try:
        hint = typing.get_type_hints(inspect.unwrap(function))[parameter.name]
    except (NameError, TypeError):
        hint = parameter.annotation
    return inspect.formatannotation(hint, base_module=function.__module__).strip("'")


def _default(parameter: inspect.Parameter) -> dict[str, Any]:
    if parameter.default is parameter.empty:
        return {"required": True}
    plain = parameter.default is None or isinstance(parameter.default, (bool, int, float, str))
    return {"required": False, "default": parameter.default if plain else repr(parameter.default)}


def _default_name(target: str, target_object: Any) -> str:
    """Return the name of a function, or the snake_case name of a class: my_env for MyEnv."""
    name = split_target(target)[1].rpartition(".")[2]
    if not isinstance(target_object, type):
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _first_line(target_object: Any) -> str:
    text = target_object.description if isinstance(target_object, Tool) else target_object.__doc__ or ""
    return next(iter(inspect.cleandoc(text).splitlines()), "")


def _definition(target_object: Any) -> tuple[str, int]:
    """Return file and line where an object is defined; "" and 0 if that is unknown."""
    try:
        definition = inspect.unwrap(target_object.function if isinstance(target_object, Tool) else target_object)
        return inspect.getsourcefile(definition) or "", inspect.getsourcelines(definition)[1]
    except (OSError, TypeError):
        return "", 0


def _file_and_line(target_object: Any) -> str:
    file, line = _definition(target_object)
    return f"{file}, line {line}"
