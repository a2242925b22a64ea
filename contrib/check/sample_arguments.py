"""Arguments for a tool, generated from its JSON schema: valid ones and invalid ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge_env.core.types import ToolSpec

_SAMPLE_OF_TYPE: Mapping[str, Any] = {"string": "1", "integer": 1, "number": 1.0, "boolean": True, "null": None}
_MAX_DEPTH = 8  # a schema may refer to itself


def sample_arguments(tools: Sequence[ToolSpec], name: str) -> dict[str, Any]:
    """Return minimal valid arguments for a tool: the required ones only."""
    schema = _parameters(tools, name)
    value = _sample(schema, schema, _MAX_DEPTH)
    return value if isinstance(value, dict) else {}


def uniform_arguments(tools: Sequence[ToolSpec], name: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(_parameters(tools, name).get("properties", {}), value)


def _parameters(tools: Sequence[ToolSpec], name: str) -> Mapping[str, Any]:
    return next(tool["function"]["parameters"] for tool in tools if tool["function"]["name"] == name)


def _sample(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    if "$ref" in schema:
        return _sample(_resolve(root, schema["$ref"]), root, depth - 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _sample(schema[key][0], root, depth - 1)
    return _sample_of_type(schema, root, depth)


def _sample_of_type(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
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
    return _SAMPLE_OF_TYPE.get(kind)


def _resolve(root: Mapping[str, Any], reference: str) -> Any:
    schema: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        schema = schema.get(part) if isinstance(schema, Mapping) else None
    return schema
