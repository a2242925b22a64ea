"""`@tool` and `@reward`: how methods of a ToolEnv become tools and rewards.

A tool's JSON schema comes from its signature and docstring; arguments are validated and coerced by pydantic. Whatever
the model gets wrong becomes a text that tells it so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from forge_env.types import ToolCall, ToolSpec

F = TypeVar("F", bound=Callable[..., Any])


class BadCall(Exception):
    """A call that the model got wrong; the text is what the model is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: what the model is shown, and how its arguments are checked."""

    name: str
    spec: ToolSpec
    arguments: type[BaseModel]
    timeout: float
    max_output: int

    def validate(self, call: ToolCall) -> dict[str, Any]:
        """Return the coerced arguments of a call.

        Raises:
            BadCall: saying what is wrong with them.
        """
        if call.arguments is None:
            raise BadCall(f"Error: the arguments of {self.name} are not a JSON object. {call.error}".strip())
        try:
            model = self.arguments.model_validate(call.arguments)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors())
            raise BadCall(f"Error: bad arguments for {self.name}: {problems}") from None
        return {name: getattr(model, name) for name in self.arguments.model_fields}


def tool(function: F | None = None, /, *, timeout: float = 30.0, max_output: int = 8192) -> Any:
    """Mark a method as a tool that the model may call.

    Args:
        function: the method; its docstring is what the model reads.
        timeout: seconds after which the call is given up.
        max_output: characters of the result that the model is shown.
    """

    def mark(method: F) -> F:
        method.__forge_tool__ = {"timeout": timeout, "max_output": max_output}  # type: ignore[attr-defined]
        return method

    return mark(function) if function is not None else mark


def reward(function: F | None = None, /, *, weight: float = 1.0) -> Any:
    """Mark a method `(self, answer: str) -> float` as part of the reward, with a weight."""

    def mark(method: F) -> F:
        method.__forge_reward__ = weight  # type: ignore[attr-defined]
        return method

    return mark(function) if function is not None else mark


def make_tool(name: str, function: Callable[..., Any]) -> Tool:
    """Derive the tool of a function marked `@tool` from its signature and docstring."""
    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {p.arg_name: (p.description or "").replace("\n", " ") for p in doc.params}
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function, eval_str=True).parameters.values())[1:]:
        annotation = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (annotation, Field(default, description=described.get(parameter.name) or None))
    arguments = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    schema = _without_titles(arguments.model_json_schema())
    schema.pop("additionalProperties", None)
    spec: ToolSpec = {
        "type": "function",
        "function": {"name": name, "description": doc.short_description or "", "parameters": schema},
    }
    settings = function.__forge_tool__  # type: ignore[attr-defined]
    return Tool(name=name, spec=spec, arguments=arguments, **settings)


def _without_titles(schema: Any) -> Any:
    """Drop the titles that pydantic adds: they cost tokens and tell the model nothing."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    return schema
