"""Describes a target: imports it and returns its tools, its options, and what is wrong with it.

It runs in a child process, see `forge_env.cli.describe_in_child`.
"""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import faulthandler
import inspect
import json
import os
import re
import signal
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forge_env.core.env import Env
from forge_env.core.errors import ForgeError, UserError
from forge_env.core.tools import Tool
from forge_env.registry.contrib import is_source, rows
from forge_env.registry.registry import load_target
from forge_env.registry.tool_sets import derive_tools, untyped
from forge_env.rollout.options import option_parameters, option_types
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.targets import add_to_path, load, split_target

_PR_SET_PDEATHSIG = 1


def main(request: Mapping[str, Any]) -> None:
    """Describe a target, write the result to a file, and end the process, whatever threads are left."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # end with the parent, even if it is killed
    faulthandler.enable(request["trace"])
    faulthandler.dump_traceback_later(request["seconds"], exit=True, file=request["trace"])
    try:
        if request["folder"]:
            add_to_path(Path(request["folder"]))
        asked = (request[name] for name in ("target", "name", "kind", "options"))
        response = describe_target(*asked, to_register=request["to_register"])
    except ForgeError as error:
        response = {"error": str(error)}
    except Exception as error:
        response = {"error": f"{request['target']!r} cannot be described: {type(error).__name__}: {error}"}
    faulthandler.cancel_dump_traceback_later()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    with open(request["result"], "w", encoding="utf-8", closefd=False) as file:
        json.dump(response, file, default=repr)
    os._exit(0)


def describe_target(
    target: str, name: str, kind: str, options: Mapping[str, Any], *, to_register: bool = True
) -> dict[str, Any]:
    """Import a target and describe it.

    A tool without a docstring, or with a parameter without a type, works: the model is told less. Only a target that is
    to be registered is refused for it; it is for others as well.

    Returns:
        name: `name`, or the default name of the target.
        kind: "env" or "tools".
        description: the first line of its docstring.
        file, line: the place of its definition.
        tools: name, description, parameters (JSON schema) and options of each tool.
        options: of an environment: name, type and default of each.
        notes: what the model is not told of the tools.
    """
    if is_source(target):
        return _describe_source(target, name, kind)
    loaded = load_target(target)
    is_env = isinstance(loaded, type) and issubclass(loaded, Env)
    if (kind or _kind(loaded)) == "env":
        tools, problems = _check_env(loaded)
    else:
        if is_env:
            raise UserError(f"{target!r} is an environment, not a set of tools: leave --kind out, or say --kind env")
        tools = derive_tools(loaded, name=name, options=options)
        problems = []
    untold = [problem for tool in tools for problem in _tool_problems(tool)]
    file, line = _definition(loaded)
    if problems or (untold and to_register):
        refused = "cannot be registered" if to_register else "is no environment"
        raise UserError(f"{target!r} {refused}: {'; '.join(problems + untold)}")
    return {
        "name": name or _default_name(target, loaded),
        "kind": "env" if is_env else "tools",
        "description": _first_line(loaded),
        "file": file,
        "line": line,
        "tools": [_tool_data(tool) for tool in tools],
        "options": _options(loaded) if is_env else [],
        "notes": untold,
    }


def _describe_source(target: str, name: str, kind: str) -> dict[str, Any]:
    if kind == "env":
        raise UserError(f"{target!r} is a source of tools, not an environment: leave --kind out, or say --kind tools")
    row = rows("tool_sources")[target.partition(":")[0]]
    label, tools = asyncio.run(row.load().described(target))
    return {
        "name": name or label,
        "kind": "tools",
        "description": f"{len(tools)} tools of {target}",
        "file": "",
        "line": 0,
        "tools": [_tool_data(tool) for tool in tools],
        "options": [],
        "notes": [],
    }


def _kind(loaded: Any) -> str:
    """Return "env" also for a class that only resembles one: its author is then told what is missing."""
    if not isinstance(loaded, type):
        return "tools"
    return "env" if issubclass(loaded, Env) or (hasattr(loaded, "reset") and hasattr(loaded, "step")) else "tools"


def _check_env(env_class: Any) -> tuple[list[Tool], list[str]]:
    if not isinstance(env_class, type) or not issubclass(env_class, Env):
        return [], [
            f"{getattr(env_class, '__qualname__', env_class)!r} is not a subclass of forge_env.Env or forge_env.ToolEnv"
        ]
    for target in env_class.shared.values():
        load(target)
    methods = ("reset", "step", "tasks")
    missing = [n for n in methods if inspect.getattr_static(env_class, n) is inspect.getattr_static(Env, n)]
    problems = [f"{env_class.__qualname__} has no {name}() ({_file_and_line(env_class)})" for name in missing]
    return list(env_class._tools.values()) if issubclass(env_class, ToolEnv) else [], problems


def _tool_problems(tool: Tool) -> list[str]:
    where = f" ({_file_and_line(tool.function)})"
    problems = [] if tool.description else [f"the tool {tool.name} has no docstring, which the model reads{where}"]
    if names := untyped(tool.function):
        problems.append(f"the tool {tool.name} has parameters without a type: {', '.join(names)}{where}")
    return problems


def _tool_data(tool: Tool) -> dict[str, Any]:
    options = {f.name: getattr(tool.options, f.name) for f in dataclasses.fields(tool.options)}
    options["fatal"] = [error.__name__ for error in tool.options.fatal]
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "options": options,
    }


def _options(env: type[Env]) -> list[dict[str, Any]]:
    """Return the options of an environment that a command line and a file can give."""
    options: dict[str, dict[str, Any]] = {}
    shared = [load(target) for target in env.shared.values()]
    for function in (*shared, env.tasks, env.__init__):
        for parameter in option_parameters(function):
            if Tool in typing.get_args(option_types(function)[parameter.name]):
                continue  # only code has such values
            description = {"name": parameter.name, "type": _type(function, parameter)} | _default(parameter)
            if description["required"] or parameter.name not in options:
                options[parameter.name] = description
    return list(options.values())


def _type(function: Callable[..., Any], parameter: inspect.Parameter) -> str:
    if parameter.annotation is parameter.empty:
        return "any"
    try:
        return inspect.formatannotation(typing.get_type_hints(inspect.unwrap(function))[parameter.name])
    except (NameError, TypeError):
        return inspect.formatannotation(parameter.annotation).strip("'")


def _default(parameter: inspect.Parameter) -> dict[str, Any]:
    if parameter.default is parameter.empty:
        return {"required": True}
    plain = parameter.default is None or isinstance(parameter.default, (bool, int, float, str))
    return {"required": False, "default": parameter.default if plain else repr(parameter.default)}


def _default_name(target: str, loaded: Any) -> str:
    """Return the name of a function, or the snake_case name of a class: my_env for MyEnv."""
    name = split_target(target)[1].rpartition(".")[2]
    return (
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
        if isinstance(loaded, type)
        else name
    )


def _first_line(loaded: Any) -> str:
    text = loaded.description if isinstance(loaded, Tool) else loaded.__doc__ or ""
    return next(iter(inspect.cleandoc(text).splitlines()), "")


def _definition(loaded: Any) -> tuple[str, int]:
    """Return file and line where an object is defined; "" and 0 if that is unknown."""
    try:
        definition = inspect.unwrap(loaded.function if isinstance(loaded, Tool) else loaded)
        return inspect.getsourcefile(definition) or "", inspect.getsourcelines(definition)[1]
    except (OSError, TypeError):
        return "", 0


def _file_and_line(loaded: Any) -> str:
    file, line = _definition(loaded)
    return f"{file}, line {line}"
