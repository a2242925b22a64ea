"""What is known of a target once it is imported: its schemas, its options, and what is wrong with it.

Runs in a child process, see `forge_env.cli.child`.
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
from forge_env.registry.registry import load_target
from forge_env.registry.tool_sets import derive_tools, untyped
from forge_env.rollout.factory import NOT_OPTIONS
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.targets import add_to_path, is_source, load, split_target

_PR_SET_PDEATHSIG = 1


def main(request: Mapping[str, Any]) -> None:
    """Examine a target, write what is found to the result's file, and end at once whatever threads it has left."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the parent may be killed
    faulthandler.enable(request["trace"])
    faulthandler.dump_traceback_later(request["seconds"], exit=True, file=request["trace"])
    try:
        if request["folder"]:
            add_to_path(Path(request["folder"]))
        answer = examine(request["target"], request["name"], request["kind"], request["options"])
    except ForgeError as error:
        answer = {"error": str(error)}
    except Exception as error:
        answer = {"error": f"{request['target']!r} cannot be examined: {type(error).__name__}: {error}"}
    faulthandler.cancel_dump_traceback_later()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    with open(request["result"], "w", encoding="utf-8", closefd=False) as file:
        json.dump(answer, file, default=repr)
    os._exit(0)


def examine(target: str, name: str, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Import a target and say what it is.

    Returns:
        name: the one given, or the one that the target suggests.
        kind: "env" or "tools".
        description: the first line of its docstring.
        file, line: where it is defined.
        tools: name, description, parameters (JSON schema) and options of each tool.
        options: of an environment: name, type and default of each.

    Raises:
        UserError: when it cannot be imported, is not of the kind asked for, or lacks something; then all that it lacks.
    """
    if is_source(target):
        return _examine_source(target, name, kind)
    found = load_target(target)
    if (kind or _kind(found)) == "env":
        tools, problems = _examine_env(found)
    else:
        if isinstance(found, type) and issubclass(found, Env):
            raise UserError(f"{target!r} is an environment, not a set of tools: leave --kind out, or say --kind env")
        tools = derive_tools(found, name=name, options=options)
        problems = []
    problems += [problem for tool in tools for problem in _lacks(tool)]
    file, line = _where(found)
    if problems:
        raise UserError(f"{target!r} cannot be registered: {'; '.join(problems)}")
    is_env = isinstance(found, type) and issubclass(found, Env)
    return {
        "name": name or _name(target, found),
        "kind": "env" if is_env else "tools",
        "description": _first_line(found),
        "file": file,
        "line": line,
        "tools": [_tool(tool) for tool in tools],
        "options": _options(found) if is_env else [],
    }


def _examine_source(target: str, name: str, kind: str) -> dict[str, Any]:
    if kind == "env":
        raise UserError(f"{target!r} is a source of tools, not an environment: leave --kind out, or say --kind tools")
    tools = asyncio.run(load("envs.tool_api.sources:list_tools")(target))
    return {
        "name": name or load("envs.tool_api.tool_names:label_of")(target),
        "kind": "tools",
        "description": f"{len(tools)} tools of {target}",
        "file": "",
        "line": 0,
        "tools": [_tool(tool) for tool in tools],
        "options": [],
    }


def _kind(found: Any) -> str:
    """An environment also where it only looks like one, so that it is told what it lacks."""
    if not isinstance(found, type):
        return "tools"
    return "env" if issubclass(found, Env) or (hasattr(found, "reset") and hasattr(found, "step")) else "tools"


def _examine_env(found: Any) -> tuple[list[Tool], list[str]]:
    if not isinstance(found, type) or not issubclass(found, Env):
        return [], [
            f"{getattr(found, '__qualname__', found)!r} is not a subclass of forge_env.Env or forge_env.ToolEnv"
        ]
    for target in found.shared.values():
        load(target)
    methods = ("reset", "step", "tasks")
    missing = [n for n in methods if inspect.getattr_static(found, n) is inspect.getattr_static(Env, n)]
    problems = [f"{found.__qualname__} has no {name}() ({_place(found)})" for name in missing]
    return list(found._tools.values()) if issubclass(found, ToolEnv) else [], problems


def _lacks(tool: Tool) -> list[str]:
    where = f" ({_place(tool.function)})"
    problems = [] if tool.description else [f"the tool {tool.name} has no docstring, which the model reads{where}"]
    if names := untyped(tool.function):
        problems.append(f"the tool {tool.name} has parameters without a type: {', '.join(names)}{where}")
    return problems


def _tool(tool: Tool) -> dict[str, Any]:
    options = {f.name: getattr(tool.options, f.name) for f in dataclasses.fields(tool.options)}
    options["fatal"] = [error.__name__ for error in tool.options.fatal]
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "options": options,
    }


def _options(env: type[Env]) -> list[dict[str, Any]]:
    """The options of an environment, as `EnvFactory` takes them."""
    found: dict[str, dict[str, Any]] = {}
    openers = [load(target) for target in env.shared.values()]
    for function in (*openers, env.tasks, env.__init__):
        for parameter in _parameters(function):
            described = {"name": parameter.name, "type": _type(function, parameter)} | _default(parameter)
            if described["required"] or parameter.name not in found:
                found[parameter.name] = described
    return list(found.values())


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if function is object.__init__:
        return []
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.kind in kinds and p.name not in NOT_OPTIONS]


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


def _name(target: str, found: Any) -> str:
    """my_env of MyEnv; the own name of a function."""
    name = split_target(target)[1].rpartition(".")[2]
    return (
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
        if isinstance(found, type)
        else name
    )


def _first_line(found: Any) -> str:
    text = found.description if isinstance(found, Tool) else found.__doc__ or ""
    return next(iter(inspect.cleandoc(text).splitlines()), "")


def _where(found: Any) -> tuple[str, int]:
    try:
        found = inspect.unwrap(found.function if isinstance(found, Tool) else found)
        return inspect.getsourcefile(found) or "", inspect.getsourcelines(found)[1]
    except (OSError, TypeError):
        return "", 0


def _place(found: Any) -> str:
    file, line = _where(found)
    return f"{file}, line {line}"
