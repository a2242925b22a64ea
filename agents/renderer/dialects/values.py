"""Values that are written without quotes, between two marks: the schema of a parameter says what they are.

As `coerce_to_schema_type` of vLLM, with two differences. JSON and Python say what numbers and booleans are: "1" is not
a boolean. And an object or a list may be written as Python writes it, since some templates do so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.renderer.dialects.literals import NotRead, literal
from agents.renderer.model_json import decode_all, dump, flaw

_TYPES: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
_NAMES = {type(None): "null", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
ANY: Mapping[str, Any] = {"type": [*_TYPES, "string"]}
_MOST_LEVELS = 8  # of choices within choices


def read_value(text: str, schema: Any) -> Any:
    """The value of a parameter from its text; a text if the schema has no other type for it.

    >>> read_value("3", {"type": "integer"}), read_value("3", {"type": "string"})
    (3, '3')
    """
    types = types_of(schema)
    if types <= {"string"}:
        return text
    value, problem = decode_all(text)
    if problem:
        try:
            value = literal(text)
        except NotRead:
            return text
    kinds = [_TYPES[name] for name in types if name in _TYPES]
    fits = any(isinstance(value, kind) and isinstance(value, bool) <= (bool in kind) for kind in kinds)
    # Without a type that fits, a parameter that may be a text is one; otherwise the tool says what is wrong.
    return value if (fits or "string" not in types) and not flaw({"": value}) else text


def write_value(value: Any) -> str:
    """The text of a value: a string as it is, everything else as JSON."""
    return value if isinstance(value, str) else dump(value)


def types_of(schema: Any, level: int = 0) -> set[str]:
    """The types that a JSON schema names, in itself, its constants or its choices; empty if it names none."""
    if not isinstance(schema, Mapping) or level > _MOST_LEVELS:
        return set()
    kinds = schema.get("type")
    types = (
        {kinds}
        if isinstance(kinds, str)
        else {k for k in kinds if isinstance(k, str)}
        if isinstance(kinds, list)
        else set()
    )
    constants = [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else ())]
    types |= {_NAMES.get(type(value), "string") for value in constants}
    for choice in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(choice) or ():
            types |= types_of(part, level + 1)
    return types
