"""Right calls of BFCL's tasks, made of the suite's possible answers.

A possible answer of a single turn has a list of accepted values for each parameter, in which "" says that it may be
left out. One of a conversation is a list of calls for each user turn, written in Python.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

Call = dict[str, Any]
"""{"name": ..., "arguments": {...}}"""
Parameters = Mapping[str, Any]
"""{"types": {parameter: [type, type of its items]}, "required": [...]} of one function."""

OMITTED = object()


def tool_name(function: str) -> str:
    """Return the name that the suite gives a function towards OpenAI-style models.

    >>> tool_name("spotify.play")
    'spotify_play'
    """
    return function.replace(".", "_")


def single_turn_calls(
    answer: Sequence[Mapping[str, Any]], parameters: Mapping[str, Parameters], category: str
) -> list[Call]:
    """Return one right call for each of a possible answer."""
    write = {"simple_java": java_literal, "simple_javascript": javascript_literal}.get(category)
    calls = []
    for function, choices in ((name, values) for item in answer for name, values in item.items()):
        types, required_names = parameters[function]["types"], parameters[function]["required"]
        arguments = {}
        for name, values in choices.items():
            kind, items = types.get(name, ["any", ""])
            value = _choice(values, kind, items, is_required=name in required_names)
            if value is not OMITTED:
                arguments[name] = value if write is None else write(value, kind, items)
        calls.append({"name": tool_name(function), "arguments": arguments})
    return calls


def _choice(values: Sequence[Any], kind: str, items: str, *, is_required: bool) -> Any:
    if "" in values and not is_required:
        return OMITTED
    value = next((value for value in values if value != ""), "")
    if kind == "dict" and isinstance(value, dict):
        return _dict_choice(value)
    if kind in ("array", "tuple") and items == "dict" and isinstance(value, list):
        return [_dict_choice(item) if isinstance(item, dict) else item for item in value]
    return value


def _dict_choice(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Choose a value for each key; a key that may be left out is left out."""
    result = {}
    for key, values in choices.items():
        if not isinstance(values, list):
            result[key] = values
        elif "" not in values:
            result[key] = values[0] if values else []
    return result


def java_literal(value: Any, kind: str, items: str = "") -> str:
    """Write a value as Java, as the suite reads it for a parameter's type.

    >>> java_literal(5, "long"), java_literal(["a"], "ArrayList", "String")
    ('5L', 'new ArrayList<String>(Arrays.asList("a"))')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value}{ {'long': 'L', 'float': 'f'}.get(kind, '') }"
    if isinstance(value, list) and kind == "Array":
        return f"new {items or 'Object'}[]{{{', '.join(java_literal(item, items) for item in value)}}}"
    if isinstance(value, list):
        if not value:
            return f"new ArrayList<{items}>()"
        parts = (f'"{item}"' if isinstance(item, str) else java_literal(item, items) for item in value)
        return f"new ArrayList<{items}>(Arrays.asList({', '.join(parts)}))"
    if isinstance(value, dict):
        parts = (f'put("{key}", {_quote(item, java_literal)});' for key, item in _dict_choice(value).items())
        return f"new HashMap<String, Object>() {{{{ {' '.join(parts)} }}}}"
    return str(value)


def javascript_literal(value: Any, kind: str, items: str = "") -> str:
    """Write a value as JavaScript, as the suite reads it for a parameter's type.

    >>> javascript_literal([1, "a"], "array"), javascript_literal({"a": [True]}, "dict")
    ("[1, 'a']", "{'a': true}")
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value}n" if kind == "Bigint" else str(value)
    if isinstance(value, list):
        return f"[{', '.join(_quote(item, javascript_literal, quote=chr(39)) for item in value)}]"
    if isinstance(value, dict):
        pairs = (
            f"'{key}': {_quote(item, javascript_literal, quote=chr(39))}" for key, item in _dict_choice(value).items()
        )
        return f"{{{', '.join(pairs)}}}"
    return str(value)


def _quote(item: Any, write: Any, quote: str = '"') -> str:
    return f"{quote}{item}{quote}" if isinstance(item, str) else str(write(item, ""))


def turn_calls(texts: Sequence[str], parameters: Mapping[str, Parameters]) -> list[Call]:
    """Read the calls of one user turn; arguments by position get the names of the parameters, in their order.

    >>> turn_calls(["cd('a')"], {"cd": {"types": {"folder": ["string", ""]}, "required": []}})
    [{'name': 'cd', 'arguments': {'folder': 'a'}}]
    """
    calls = []
    for text in texts:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError(f"{text!r} is no call of a function")
        names = list(parameters[node.func.id]["types"])
        arguments = {names[i]: ast.literal_eval(value) for i, value in enumerate(node.args)}
        arguments |= {str(item.arg): ast.literal_eval(item.value) for item in node.keywords}
        calls.append({"name": node.func.id, "arguments": arguments})
    return calls
