"""Calls in OpenAI's shape: the `tool_calls` of a message, and the dialect that writes them as JSON text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents.renderer.dialects.calls import Calls, Tools, Written, with_ids
from agents.renderer.model_json import SPACE, arguments_of, decode_all, dump, kind
from forge_env.core.types import ToolCall

_OBJECT = (dict, Mapping)  # dict first: asking an abstract class is slow
_FORM = '{"id": "ID", "type": "function", "function": {"name": "TOOL", "arguments": {...}}}'
_ARGUMENTS_FORM = '{"PARAMETER": VALUE, ...}'


def from_openai(message: Mapping[str, Any]) -> Calls:
    """Read the `tool_calls` of an OpenAI-shaped message; see `read_arguments`. Never raises."""
    call_list = message.get("tool_calls")
    if not call_list:
        return ()
    items = call_list if isinstance(call_list, (list, tuple)) else [call_list]
    for item in items:
        if isinstance(item, _OBJECT) and "id" in item:
            return with_ids([_read_item(item, _ARGUMENTS_FORM) for item in items])
    return tuple([_read_item(item, _ARGUMENTS_FORM, f"call_{i}") for i, item in enumerate(items)])


def to_openai(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Return calls as the `tool_calls` of a message; `arguments` is JSON text, or `raw` for an unreadable call."""
    return [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _arguments_text(c)}} for c in calls
    ]


def _read_item(item: Any, form: str, id_: str = "") -> ToolCall:
    """Read one entry of `tool_calls`. `raw` keeps the model's arguments, to show them to the model again."""
    if not isinstance(item, _OBJECT):
        return Written(problem=f"it is {kind(item)} and not a JSON object", raw=_text_of(item), id=id_).call(form)
    function = item.get("function", item)
    if not isinstance(function, _OBJECT):
        problem = f'its "function" is {kind(function)} and not a JSON object'
        return Written(problem=problem, raw=_text_of(function), id=id_).call(form)
    id_ = item["id"] if isinstance(item.get("id"), str) else id_
    name = function["name"] if isinstance(function.get("name"), str) else ""
    arguments, problem = arguments_of(function)
    if not name:
        problem = 'its "name" is missing, or is no text'
    if problem:
        return Written(name, None, problem, _text_of(function.get("arguments")), id_).call(form)
    return ToolCall(id=id_, name=name, arguments=arguments)


def _text_of(value: Any) -> str:
    """Return a value as JSON text; a value that JSON cannot express is named by its type."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return dump(value)
    except (TypeError, ValueError, RecursionError):
        return f"<{type(value).__name__}>"


def _arguments_text(call: ToolCall) -> str:
    return call.raw if call.arguments is None else dump(call.arguments)


class OpenAI:
    """The dialect: a JSON object or list of calls in the shape of `tool_calls`, or of a message that holds them."""

    form = _FORM
    marks: tuple[str, ...] = ()

    def read(self, text: str, tools: Tools) -> tuple[str, list[ToolCall]]:
        inner_text = text.strip(SPACE)
        if not inner_text.startswith(("{", "[")):
            return text, []
        value, problem = decode_all(inner_text)
        if problem:
            looks = '"tool_calls"' in inner_text or '"function"' in inner_text
            return ("", [Written(problem=problem, raw=inner_text).call(_FORM)]) if looks else (text, [])
        content = ""
        if isinstance(value, dict) and "tool_calls" in value:
            content = value["content"] if isinstance(value.get("content"), str) else ""
            call_list = value["tool_calls"] if value["tool_calls"] is not None else []
            return content, [
                _read_item(item, _FORM) for item in (call_list if type(call_list) is list else [call_list])
            ]
        items = value if isinstance(value, list) else [value]
        if not any(isinstance(item, dict) and "function" in item for item in items):
            return text, []
        return content, [_read_item(item, _FORM) for item in items]

    def write(self, content: str, calls: Calls) -> str:
        if calls and not content:
            return dump(to_openai(calls))
        if calls or self.read(content, ()) != (content, []):  # content that would be read as calls is wrapped, too
            return dump({"content": content, "tool_calls": to_openai(calls)})
        return content
