"""Arguments made up from a tool's JSON schema: fitting ones, and ones that do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge_env.core.types import ToolSpec

_BY_TYPE: Mapping[str, Any] = {"string": "1", "integer": 1, "number": 1.0, "boolean": True, "null": None}
_DEPTH = 8  # a schema may refer to itself


def sample_arguments(tools: Sequence[ToolSpec], name: str) -> dict[str, Any]:
    """Return the smallest arguments that fit a tool's schema: what it requires, and no more."""
    schema = _parameters(tools, name)
    value = _sample(schema, schema, _DEPTH)
    return value if isinstance(value, dict) else {}


def same_for_all(tools: Sequence[ToolSpec], name: str, value: Any) -> dict[str, Any]:
    """Return arguments that give every parameter of a tool the same value."""
    return dict.fromkeys(_parameters(tools, name).get("properties", {}), value)


def _parameters(tools: Sequence[ToolSpec], name: str) -> Mapping[str, Any]:
    return next(tool["function"]["parameters"] for tool in tools if tool["function"]["name"] == name)


def _sample(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    if "$ref" in schema:
        return _sample(_referred(root, schema["$ref"]), root, depth - 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _sample(schema[key][0], root, depth - 1)
    return _of_type(schema, root, depth)


def _of_type(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _sample(properties.get(name, {}), root, depth - 1) for name in schema.get("required", ())}
    if kind == "array":
        first = schema.get("prefixItems", [])
        rest = [schema.get("items", {})] * max(0, schema.get("minItems", 0) - len(first))
        return [_sample(item, root, depth - 1) for item in [*first, *rest]]
    if kind in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    if kind == "string":
        return "1" * max(1, min(schema.get("minLength", 1), 1000))
    return _BY_TYPE.get(kind)


def _referred(root: Mapping[str, Any], reference: str) -> Any:
    """What "#/$defs/Name" stands for; None when it is not there."""
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
