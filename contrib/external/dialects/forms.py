"""The form that a request asks of its answer: a JSON Schema, or a call of a tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.external.constraint import Constraint, wrong_with
from forge_env.core.types import ToolSpec

_ANY_OBJECT = {"type": "object"}


def schema_of(form: Any, where: str) -> dict[str, Any] | None:
    """The schema of a `response_format`, or of its counterpart in other dialects; None for free text.

    Args:
        form: {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema"} with a schema in it, or in its part
            "json_schema".
        where: the field, for messages.
    """
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        value = json.dumps(form)[:80]
        raise RequestRefused(
            400, f"{where} is {value}; its type is text, json_object or json_schema", param=where.partition(".")[0]
        )
    holder = form["json_schema"] if isinstance(form.get("json_schema"), dict) else form
    if problem := wrong_with(holder.get("schema")):
        raise RequestRefused(400, f"the schema of {where} is no JSON Schema: {problem}", param=where.partition(".")[0])
    schema: dict[str, Any] = holder["schema"]
    return schema


def constraint_of(
    schema: dict[str, Any] | None, choice: Sequence[str] | None, tools: Sequence[ToolSpec]
) -> Constraint | None:
    """The form that the answer must have, if any. If tools may be called, the schema is for an answer without calls.

    Args:
        schema: of the text.
        choice: names of the tools; one of them must be called. None if no call is needed.
        tools: that the model may call.
    """
    if choice is None:
        return None if schema is None else Constraint.of_schema(schema, _names(tools))
    names = _names(tools)
    missing = next((name for name in choice if name not in names), None)
    if missing is not None or not names:
        what = f"asks for the tool {missing!r:.60}" if missing is not None else "asks for a call"
        raise RequestRefused(
            400, f"tool_choice {what}, and the tools are {', '.join(names) or 'none'}", param="tool_choice"
        )
    return Constraint(tools=tuple(choice) or names)


def _names(tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tool["function"]["name"] for tool in tools))


def openai_choice(choice: Any) -> tuple[str, ...] | None:
    """Read OpenAI's `tool_choice`: the names of tools if one of them must be called, () for any; None for auto and
    none.
    """
    if choice in (None, "auto", "none"):
        return None
    if choice == "required":
        return ()
    if isinstance(choice, dict):
        part = choice.get("function", choice)
        if choice.get("type") == "function" and isinstance(part, dict) and isinstance(part.get("name"), str):
            return (part["name"],)
        subset = choice.get("allowed_tools", choice)
        if choice.get("type") == "allowed_tools" and isinstance(subset, dict) and subset.get("mode") == "required":
            tools = subset.get("tools")
            entries = tools if isinstance(tools, list) else []
            items = [item.get("function", item) for item in entries if isinstance(item, dict)]
            names = tuple(str(item.get("name")) for item in items if isinstance(item, dict))
            if names:
                return names
    raise _not_offered(choice, "auto, none, required, a function by its name, or allowed_tools with mode required")


def anthropic_choice(choice: Any) -> tuple[str, ...] | None:
    """Read Anthropic's `tool_choice`, as `openai_choice`."""
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind in (None, "auto", "none"):
        return None
    if kind == "any":
        return ()
    if kind == "tool" and isinstance(choice, dict) and isinstance(choice.get("name"), str):
        return (choice["name"],)
    raise _not_offered(choice, "auto, none, any, or tool with a name")


def _not_offered(choice: Any, names: str) -> RequestRefused:
    value = json.dumps(choice)[:80]
    return RequestRefused(400, f"tool_choice is {value}, which is not offered; it is {names}", param="tool_choice")
