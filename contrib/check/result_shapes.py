"""Checks the shape of the results of `reset` and `step`, and of tool specs.

Each function returns one sentence about the first problem, or "".
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from contrib.check.context import shorten
from forge_env.core.errors import EnvError
from forge_env.core.plain_value import ADDRESS, json_problem, messages_problem
from forge_env.core.reward_value import reward_value
from forge_env.core.types import Outcome

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def reset_problem(result: Any) -> str:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        return f"reset() returned {shorten(repr(result))}; return (messages, info)"
    messages, info = result
    if problem := messages_problem(messages):
        return f"reset(): {problem}"
    if not messages:
        return "reset() returned no messages; the first observation holds at least the task's prompt"
    if messages[-1]["role"] == "assistant":
        return "reset() ends with an assistant message; end with what the model is to answer"
    if not isinstance(info, Mapping):
        return f"reset() returned the info {shorten(repr(info))}; info is a dict"
    return ""


def step_problem(result: Any) -> str:
    if not isinstance(result, (tuple, list)) or len(result) != 5:
        return f"step() returned {shorten(repr(result))}; return (messages, reward, terminated, truncated, info)"
    messages, reward, terminated, truncated, info = result
    if problem := messages_problem(messages):
        return f"step(): {problem}"
    for message in messages:
        if message["role"] == "tool" and (address := ADDRESS.search(message["content"])):
            return (
                f"step() returned the content {shorten(message['content'])!r}, with {address[0]}: an address in memory "
                "differs between processes; return a text, a number, a list or a dict from the tool"
            )
    if any(message["role"] == "assistant" for message in messages):
        return "step() returned an assistant message; return only the new messages, without the action's own"
    try:
        reward_value(reward, "step() returned the reward")
    except EnvError as error:
        return str(error)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag).__name__ not in ("bool", "bool_"):  # numpy's type is called bool_ in older versions
            return f"step() returned {name}={flag!r}; it is True or False"
    return _info_problem(info)


def _info_problem(info: Any) -> str:
    if not isinstance(info, Mapping):
        return f"step() returned the info {shorten(repr(info))}; info is a dict"
    if "outcome" in info and info["outcome"] not in list(Outcome):
        return f"step() returned info['outcome']={info['outcome']!r}; it is one of {', '.join(Outcome)}"
    rewards = info.get("rewards", {})
    if not isinstance(rewards, Mapping):
        return f"step() returned info['rewards']={rewards!r}; it is a dict of finite numbers by name"
    try:
        for name, value in rewards.items():
            reward_value(value, f"step() returned info['rewards'][{name!r}] =")
    except EnvError as error:
        return str(error)
    return ""


def tools_problem(tools: Any) -> str:
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        return f"tools is {shorten(repr(tools))}; it is a list of tool specs"
    names = []
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not {"name", "description", "parameters"} <= function.keys():
            shape = "{'type': 'function', 'function': {'name', 'description', 'parameters'}}"
            return f"tool {i} is {shorten(repr(tool))}; it has the shape {shape}"
        if not isinstance(function["name"], str) or not _NAME.fullmatch(function["name"]):
            return f"tool {i} is named {function['name']!r}; a name is 1 to 64 letters, digits, _ and -"
        if problem := _schema_problem(function["parameters"]):
            return f"the parameters of the tool {function['name']} {problem}"
        if not isinstance(function["description"], str):
            return f"the description of the tool {function['name']} is no text but {function['description']!r:.80}"
        names.append(function["name"])
    duplicates = sorted({name for name in names if names.count(name) > 1})
    return f"two tools are named {duplicates[0]}; rename one" if duplicates else ""


def _schema_problem(schema: Any) -> str:
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return f"are {shorten(repr(schema))}; they are a JSON schema of type object"
    properties, names = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not all(isinstance(p, (Mapping, bool)) for p in properties.values()):
        return "have properties that are no dict of JSON schemas"
    if not isinstance(names, list) or not set(names) <= properties.keys():
        return f"require {names!r}, which must be a list of names among the properties"
    return json_problem(schema) or _draft_problem(schema)


def _draft_problem(schema: Mapping[str, Any]) -> str:
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError:  # an optional package; the structure has been checked above
        return ""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"are no JSON schema of draft 2020-12: {error.message}"
    return ""
