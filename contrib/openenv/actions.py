"""How a model acts in an OpenEnv environment: its MCP tools, one tool of its action's schema, or plain text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contrib.apis.json_schema.validation import SchemaArguments
from contrib.apis.tool_names import free_name
from contrib.openenv.messages import takes_messages
from contrib.openenv.session import MAX_FRAME
from forge_env.core.errors import UserError
from forge_env.core.tool_arguments import without_titles
from forge_env.core.tools import Tool, ToolOptions

KINDS = ("auto", "tool", "text")
NO_LIMIT = 30 * 86_400.0
"""Seconds of a call: the limits of the episode end it."""
_OF_MCP = {"type", "tool_name", "arguments"}


def fields_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an action; "metadata" is in every one and is not the model's."""
    return {name: field for name, field in schema["properties"].items() if name != "metadata"}


def takes_mcp(schema: Mapping[str, Any]) -> bool:
    """Whether an environment with this action takes calls of its MCP tools as steps."""
    fields = fields_of(schema)
    return not fields or fields.keys() == _OF_MCP


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """How the model acts: by tools, which return actions, or by text that becomes one field of the action."""

    tools: Mapping[str, Tool]
    are_of_mcp: bool = False
    """Whether the MCP server of the environment has the tools."""
    text_field: str = ""
    are_messages: bool = False
    """Whether an action is an assistant message, see `contrib.openenv.messages`."""


def make_actions(schema: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None, kind: str, url: str) -> Actions:
    """Decide how the model acts, by the schema of an action and the MCP tools.

    The kind is "tool" or "text"; "auto" is text for an action of one text field, and a tool for any other.
    """
    if tools is not None and takes_mcp(schema):
        tools_by_name: dict[str, Tool] = {}
        for spec in tools:
            name = free_name(str(spec.get("name")), tools_by_name)
            tools_by_name[name] = _mcp_tool(name, spec, url)
        return Actions(tools=tools_by_name, are_of_mcp=True)
    fields = fields_of(schema)
    if not fields:
        raise UserError(
            f"the environment at {url} has no tools, and its actions have no fields: nothing can be done there"
        )
    if takes_messages(fields):
        return Actions(tools={}, are_messages=True)
    required_names = [name for name in schema.get("required", ()) if name in fields]
    texts = [name for name in (required_names or fields) if fields[name].get("type") == "string"]
    is_text = len(fields) == 1 and len(texts) == 1 and "enum" not in fields[texts[0]]
    if kind == "text" and (len(texts) != 1 or len(required_names) > 1):
        raise UserError(
            f"the option actions is 'text', and an action of the environment at {url} has the fields "
            f"{', '.join(fields)}: leave the option out, and the model calls a tool"
        )
    if kind == "text" or (kind == "auto" and is_text):
        return Actions(tools={}, text_field=texts[0])
    title = str(schema.get("title", "")).removesuffix("Action")
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title).lower()
    name = name if re.fullmatch(r"[a-z_][a-z0-9_]{0,63}", name) else "act"
    arguments = {"type": "object", "properties": fields, "required": required_names, "additionalProperties": False}
    if "$defs" in schema:
        arguments["$defs"] = schema["$defs"]
    description = " ".join(str(schema.get("description") or "Take an action in the environment.").split())
    return Actions(tools={name: _tool(name, description, arguments, f"the action of the environment at {url}", dict)})


def _mcp_tool(name: str, spec: Mapping[str, Any], url: str) -> Tool:
    schema = spec.get("inputSchema") or spec.get("input_schema") or {"type": "object", "properties": {}}

    def action(**arguments: Any) -> dict[str, Any]:
        return {"type": "call_tool", "tool_name": str(spec.get("name")), "arguments": arguments}

    where = f"the tool {name!r} of the environment at {url}"
    return _tool(name, str(spec.get("description") or ""), schema, where, action)


def _tool(
    name: str, description: str, schema: Mapping[str, Any], where: str, action: Callable[..., dict[str, Any]]
) -> Tool:
    parameters = without_titles(dict(schema))
    parameters.setdefault("type", "object")
    parameters.setdefault("properties", {})
    return Tool(
        name=name,
        description=description,
        parameters=parameters,
        arguments=SchemaArguments(schema, where=where),
        function=action,
        options=ToolOptions(timeout=NO_LIMIT, max_output=MAX_FRAME),
    )
