"""How a model acts in an OpenEnv environment: its MCP tools, one tool of its action's schema, or plain text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contrib.apis.json_schema.validation import SchemaArguments
from contrib.openenv.messages import takes_messages
from forge_env.core.errors import UserError
from forge_env.core.tools import free_name, without_titles
from forge_env.core.types import ToolSpec

KINDS = ("auto", "tool", "text")
_OF_MCP = {"type", "tool_name", "arguments"}


def fields_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an action; "metadata" is in every one and is not the model's."""
    return {name: field for name, field in schema["properties"].items() if name != "metadata"}


def takes_mcp(schema: Mapping[str, Any]) -> bool:
    """Whether an environment with this action takes calls of its MCP tools as steps."""
    fields = fields_of(schema)
    return not fields or fields.keys() == _OF_MCP


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTool:
    spec: ToolSpec
    check: SchemaArguments
    is_mcp: bool
    mcp_name: str = ""

    def action(self, arguments: dict[str, Any]) -> dict[str, Any]:
        checked = self.check(arguments)
        return {"type": "call_tool", "tool_name": self.mcp_name, "arguments": checked} if self.is_mcp else checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """How the model acts: by tools, or by text that becomes one field of the action."""

    tools: Mapping[str, ActionTool]
    text_field: str = ""
    are_messages: bool = False
    """Whether an action is an assistant message, see `contrib.openenv.messages`."""

    @property
    def specs(self) -> list[ToolSpec]:
        return [tool.spec for tool in self.tools.values()]


def make_actions(schema: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None, kind: str, url: str) -> Actions:
    """Decide how the model acts, by the schema of an action and the MCP tools.

    The kind is "tool" or "text"; "auto" is text for an action of one text field, and a tool for any other.
    """
    if tools is not None and takes_mcp(schema):
        named: dict[str, ActionTool] = {}
        for listed in tools:
            name = free_name(str(listed.get("name")), named)
            named[name] = _mcp_tool(name, listed, url)
        return Actions(tools=named)
    fields = fields_of(schema)
    if not fields:
        raise UserError(
            f"the environment at {url} has no tools, and its actions have no fields: nothing can be done there"
        )
    if takes_messages(fields):
        return Actions(tools={}, are_messages=True)
    needed = [name for name in schema.get("required", ()) if name in fields]
    texts = [name for name in (needed or fields) if fields[name].get("type") == "string"]
    is_text = len(fields) == 1 and len(texts) == 1 and "enum" not in fields[texts[0]]
    if kind == "text" and (len(texts) != 1 or len(needed) > 1):
        raise UserError(
            f"the option actions is 'text', and an action of the environment at {url} has the fields "
            f"{', '.join(fields)}: leave the option out, and the model calls a tool"
        )
    if kind == "text" or (kind == "auto" and is_text):
        return Actions(tools={}, text_field=texts[0])
    tool = _schema_tool(schema, fields, url)
    return Actions(tools={tool.spec["function"]["name"]: tool})


def _mcp_tool(name: str, listed: Mapping[str, Any], url: str) -> ActionTool:
    schema = listed.get("inputSchema") or listed.get("input_schema") or {"type": "object", "properties": {}}
    return ActionTool(
        spec=_spec(name, str(listed.get("description") or ""), schema),
        check=SchemaArguments(schema, where=f"the tool {name!r} of the environment at {url}"),
        is_mcp=True,
        mcp_name=str(listed.get("name")),
    )


def _schema_tool(schema: Mapping[str, Any], fields: dict[str, Any], url: str) -> ActionTool:
    title = str(schema.get("title", "")).removesuffix("Action")
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title).lower()
    name = name if re.fullmatch(r"[a-z_][a-z0-9_]{0,63}", name) else "act"
    needed = [field for field in schema.get("required", ()) if field in fields]
    arguments = {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}
    if "$defs" in schema:
        arguments["$defs"] = schema["$defs"]
    description = " ".join(str(schema.get("description") or "Take an action in the environment.").split())
    return ActionTool(
        spec=_spec(name, description, arguments),
        check=SchemaArguments(arguments, where=f"the action of the environment at {url}"),
        is_mcp=False,
    )


def _spec(name: str, description: str, schema: Mapping[str, Any]) -> ToolSpec:
    parameters = without_titles(dict(schema))
    parameters.setdefault("type", "object")
    parameters.setdefault("properties", {})
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
