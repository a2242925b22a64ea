"""The shapes of messages and tool specs. Every function returns a sentence that says what is wrong, or nothing."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from forge_env.core.errors import EnvError
from forge_env.core.message_shape import wrong_with_json, wrong_with_messages
from forge_env.core.reward_value import reward_value
from forge_env.core.types import Outcome

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def wrong_with_reset(result: Any) -> str:
    """Check what `reset` returned."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        return f"reset() returned {_shown(result)}; return (messages, info)"
    messages, info = result
    if problem := wrong_with_messages(messages):
        return f"reset(): {problem}"
    if not messages:
        return "reset() returned no messages; the first observation holds at least the task's prompt"
    if messages[-1]["role"] == "assistant":
        return "reset() ends with an assistant message; end with what the model is to answer"
    if not isinstance(info, Mapping):
        return f"reset() returned the info {_shown(info)}; info is a dict"
    return ""


def wrong_with_step(result: Any) -> str:
    """Check what `step` returned."""
    if not isinstance(result, (tuple, list)) or len(result) != 5:
        return f"step() returned {_shown(result)}; return (messages, reward, terminated, truncated, info)"
    messages, reward, terminated, truncated, info = result
    if problem := wrong_with_messages(messages):
        return f"step(): {problem}"
    if any(message["role"] == "assistant" for message in messages):
        return "step() returned an assistant message; return only the new messages, without the action's own"
    try:
        reward_value(reward, "step() returned the reward")
    except EnvError as error:
        return str(error)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag).__name__ not in ("bool", "bool_"):  # numpy's has the second name
            return f"step() returned {name}={flag!r}; it is True or False"
    return _wrong_with_info(info)


def _wrong_with_info(info: Any) -> str:
    if not isinstance(info, Mapping):
        return f"step() returned the info {_shown(info)}; info is a dict"
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


def wrong_with_tools(tools: Any) -> str:
    """Check the tools of an instance: OpenAI's shape, and JSON schemas of draft 2020-12."""
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        return f"tools is {_shown(tools)}; it is a list of tool specs"
    names = []
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not {"name", "description", "parameters"} <= function.keys():
            shape = "{'type': 'function', 'function': {'name', 'description', 'parameters'}}"
            return f"tool {i} is {_shown(tool)}; it has the shape {shape}"
        if not isinstance(function["name"], str) or not _NAME.fullmatch(function["name"]):
            return f"tool {i} is named {function['name']!r}; a name is 1 to 64 letters, digits, _ and -"
        if problem := _wrong_with_schema(function["parameters"]):
            return f"the parameters of the tool {function['name']} {problem}"
        names.append(function["name"])
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"two tools are named {twice[0]}; rename one" if twice else ""


def _wrong_with_schema(schema: Any) -> str:
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return f"are {_shown(schema)}; they are a JSON schema of type object"
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not all(isinstance(p, (Mapping, bool)) for p in properties.values()):
        return "have properties that are no dict of JSON schemas"
    if not isinstance(required, list) or not set(required) <= properties.keys():
        return f"require {required!r}, which must be a list of names among the properties"
    return wrong_with_json(schema) or _against_draft(schema)


def _against_draft(schema: Mapping[str, Any]) -> str:
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError:  # an optional package: the structural checks above have been done
        return ""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"are no JSON schema of draft 2020-12: {error.message}"
    return ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
