"""Text to tool calls and back, for every format that model families write. No tokenizer is needed.

A dialect is the format of calls in plain text:

- ``hermes``, of Qwen and Hermes: ``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``
- ``llama``, of Llama 3.1 and later: ``{"name": "add", "parameters": {"a": 1}}``, several separated by ";" or newlines,
  after ``<|python_tag|>`` if other words come first
- ``openai``: a JSON object or list of calls in the shape of OpenAI's ``tool_calls``
- ``none``: no calls, everything is content

`agents.renderer.model_json.read_arguments` reads the arguments of all of them.

A model's text never raises: an unreadable call becomes a ToolCall without arguments, with one sentence in `error` that
has the problem and the right form. `from_openai` and `to_openai` convert message dictionaries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agents.renderer.model_json import SPACE, arguments_of, decode, decode_all, dump, goes_on, kind
from forge_env.core.errors import UserError, nearest
from forge_env.core.types import Message, ToolCall

Calls = tuple[ToolCall, ...]

_OBJECT = (dict, Mapping)  # dict first: asking an abstract class is slow
_HERMES_FORM = '<tool_call>{"name": "TOOL", "arguments": {...}}</tool_call>'
_LLAMA_FORM = '{"name": "TOOL", "parameters": {...}}'
_OPENAI_FORM = '{"id": "ID", "type": "function", "function": {"name": "TOOL", "arguments": {...}}}'
_ARGUMENTS_FORM = '{"PARAMETER": VALUE, ...}'
_OPEN, _CLOSE, _PYTHON_TAG = "<tool_call>", "</tool_call>", "<|python_tag|>"
_CLOSING = re.compile(rf"[{SPACE}]*{_CLOSE}")
_MARK = re.compile(f"{_OPEN}|{_CLOSE}")
_BETWEEN = re.compile(rf"[{SPACE};]*")
_END_OF_TURN = re.compile(r"(<\|eom_id\|>|<\|eot_id\|>)\s*$")


def parse(text: str, dialect: str) -> tuple[str, Calls]:
    """The content without the calls, and the calls in order; their ids are "call_0", "call_1", ...

    Raises:
        UserError: the dialect is unknown; names the nearest one.
    """
    return _dialect(dialect)[0](text)


def write(message: Message | Sequence[ToolCall], dialect: str) -> str:
    """A message, or only calls, as a model writes them: the text that `parse` reads.

    Reasoning is left out. The dialect "none" writes the content alone.

    Raises:
        UserError: the dialect is unknown; names the nearest one.
    """
    writer = _dialect(dialect)[1]
    if isinstance(message, Mapping):
        return writer(message.get("content") or "", from_openai(message))
    return writer("", tuple(message))


def from_openai(message: Mapping[str, Any]) -> Calls:
    """Read the `tool_calls` of an OpenAI-shaped message; see `read_arguments`. Never raises."""
    listed = message.get("tool_calls")
    if not listed:
        return ()
    items = listed if isinstance(listed, (list, tuple)) else [listed]
    for item in items:
        if isinstance(item, _OBJECT) and "id" in item:
            return _with_ids([_openai_call(item, _ARGUMENTS_FORM) for item in items])
    return tuple([_openai_call(item, _ARGUMENTS_FORM, f"call_{i}") for i, item in enumerate(items)])


def to_openai(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Return calls as the `tool_calls` of a message; `arguments` is JSON text, or `raw` for an unreadable call."""
    return [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _arguments_text(c)}} for c in calls
    ]


# ---- from values to calls ----


def _call(value: Any, raw: str, problem: str, form: str, *keys: str) -> ToolCall:
    """Make a call from {"name": ..., KEY: {...}} with the first of `keys` that is present; the id is set later."""
    name, arguments = "", None
    if not problem:
        name, arguments, problem = _parts(value, keys)
    if problem:
        return ToolCall(id="", name=name, arguments=None, raw=raw, error=_error(problem, form))
    return ToolCall(id="", name=name, arguments=arguments)


def _error(problem: str, form: str) -> str:
    return f"The call cannot be read because {problem}: write {form}."


def _parts(value: Any, keys: Sequence[str]) -> tuple[str, dict[str, Any] | None, str]:
    if not isinstance(value, dict):
        return "", None, f"it is {kind(value)} and not a JSON object"
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return "", None, 'its "name" is missing, or is no text'
    return (name, *arguments_of(value, keys))


def _openai_call(item: Any, form: str, id_: str = "") -> ToolCall:
    """Read one entry of `tool_calls`. `raw` keeps the model's arguments, to show them to the model again."""
    if not isinstance(item, _OBJECT):
        return _unreadable(id_, _text_of(item), f"it is {kind(item)} and not a JSON object", form)
    function = item.get("function", item)
    if not isinstance(function, _OBJECT):
        return _unreadable(id_, _text_of(function), f'its "function" is {kind(function)} and not a JSON object', form)
    id_ = item["id"] if isinstance(item.get("id"), str) else id_
    name = function["name"] if isinstance(function.get("name"), str) else ""
    arguments, problem = arguments_of(function)
    if not name:
        problem = 'its "name" is missing, or is no text'
    if problem:
        return _unreadable(id_, _text_of(function.get("arguments")), problem, form, name)
    return ToolCall(id=id_, name=name, arguments=arguments)


def _unreadable(id_: str, raw: str, problem: str, form: str, name: str = "") -> ToolCall:
    return ToolCall(id=id_, name=name, arguments=None, raw=raw, error=_error(problem, form))


def _text_of(value: Any) -> str:
    """Return a value as JSON text; a value that JSON cannot express is named by its type."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return dump(value)
    except (TypeError, ValueError, RecursionError):
        return f"<{type(value).__name__}>"


def _with_ids(calls: Sequence[ToolCall]) -> Calls:
    """Give every call a unique id; unique ids are kept."""
    taken: set[str] = set()
    numbered: list[ToolCall] = []
    number = 0  # the lowest id that may be free
    for index, call in enumerate(calls):
        id_ = call.id
        if not id_ or id_ in taken:
            number = max(number, index)
            while (id_ := f"call_{number}") in taken:
                number += 1
        taken.add(id_)
        numbered.append(call if id_ == call.id else replace(call, id=id_))
    return tuple(numbered)


def _arguments_text(call: ToolCall) -> str:
    return call.raw if call.arguments is None else dump(call.arguments)


# ---- hermes ----


def _parse_hermes(text: str) -> tuple[str, Calls]:
    calls: list[ToolCall] = []
    content: list[str] = []
    at = 0
    while (start := text.find(_OPEN, at)) >= 0:
        content.append(text[at:start])
        call, at = _hermes_block(text, start + len(_OPEN))
        calls.append(call)
    if not calls:
        return text, ()
    content.append(text[at:])
    return "".join(content).strip(), _with_ids(calls)


def _hermes_block(text: str, start: int) -> tuple[ToolCall, int]:
    """Read one call; returns the call and the end of its block."""
    while start < len(text) and text[start] in SPACE:
        start += 1
    value, end, problem = _decode_block(text, start)
    after = _CLOSING.match(text, end)
    if after and not problem:  # the end marker may be inside a JSON string, so the JSON is read first
        return _call(value, text[start:end], "", _HERMES_FORM, "arguments", "parameters"), after.end()
    mark = _MARK.search(text, start if problem else end)
    if mark is None or mark[0] == _OPEN:
        stop = resume = mark.start() if mark else len(text)
        problem = f"it does not end with {_CLOSE}"
    else:
        stop, resume = mark.span()
    problem = problem or goes_on(text[end:stop])
    return _call(None, text[start:stop].strip(SPACE), problem, _HERMES_FORM), resume


def _decode_block(text: str, start: int) -> tuple[Any, int, str]:
    """`decode` on as little text as possible: a JSON error costs time in proportion to the length of the text.

    JSON ends before a marker, unless the marker is inside a JSON string; only then is more text passed.
    """
    size = 0
    while True:
        mark = _MARK.search(text, start + size)
        end = mark.start() if mark else len(text)
        value, length, problem = decode(text[start:end])
        if mark is None or "Unterminated string" not in problem:
            return value, start + length, problem
        size = max(2 * (end - start), 1)


def _write_hermes(content: str, calls: Calls) -> str:
    blocks = [f"{_OPEN}\n{_json_call(call, 'arguments')}\n{_CLOSE}" for call in calls]
    return "\n".join([content, *blocks] if content else blocks)


def _json_call(call: ToolCall, key: str) -> str:
    return call.raw if call.arguments is None else dump({"name": call.name, key: call.arguments})


# ---- llama ----


def _parse_llama(text: str) -> tuple[str, Calls]:
    before, tag, body = "", "", text
    if not _looks_like_llama(text.strip(SPACE)):  # if it does, a tag is part of an argument
        before, tag, body = text.partition(_PYTHON_TAG)
        if not tag:
            return text, ()
    calls: list[ToolCall] = []
    rest, at = _END_OF_TURN.sub("", body).strip(SPACE), 0
    while rest.startswith("{", at):
        value, end, problem = decode(rest, at)
        calls.append(_call(value, rest[at:end], problem, _LLAMA_FORM, "parameters", "arguments"))
        at = _BETWEEN.match(rest, end).end()  # type: ignore[union-attr]  # it matches everywhere
    rest = rest[at:]
    if not rest and not calls:
        return text, ()
    if not calls:
        calls, rest = [_call(None, rest, "it is not a JSON object", _LLAMA_FORM)], ""
    return "\n".join(part for part in (before.strip(), rest.strip()) if part), _with_ids(calls)


def _looks_like_llama(text: str) -> bool:
    """Whether JSON without a tag is a call: it has a name and parameters, or is a call that breaks off."""
    if not text.startswith("{"):
        return False
    value, _, problem = decode(text)
    if problem:
        return bool(re.match(r'\{\s*"name"\s*:', text)) and ('"parameters"' in text or '"arguments"' in text)
    return isinstance(value, dict) and "name" in value and ("parameters" in value or "arguments" in value)


def _write_llama(content: str, calls: Calls) -> str:
    written = "; ".join(_json_call(call, "parameters") for call in calls)
    if not content or not calls:
        return content or written
    return f"{content}{_PYTHON_TAG}{written}"


# ---- openai ----


def _parse_openai(text: str) -> tuple[str, Calls]:
    stripped = text.strip(SPACE)
    if not stripped.startswith(("{", "[")):
        return text, ()
    value, problem = decode_all(stripped)
    if problem:
        looks = '"tool_calls"' in stripped or '"function"' in stripped
        return ("", _with_ids([_unreadable("", stripped, problem, _OPENAI_FORM)])) if looks else (text, ())
    content = ""
    if isinstance(value, dict) and "tool_calls" in value:
        content = value["content"] if isinstance(value.get("content"), str) else ""
        value = value["tool_calls"] if value["tool_calls"] is not None else []
        return content, _with_ids([_openai_call(i, _OPENAI_FORM) for i in (value if type(value) is list else [value])])
    items = value if isinstance(value, list) else [value]
    if not any(isinstance(item, dict) and "function" in item for item in items):
        return text, ()
    return content, _with_ids([_openai_call(item, _OPENAI_FORM) for item in items])


def _write_openai(content: str, calls: Calls) -> str:
    if calls and not content:
        return dump(to_openai(calls))
    if calls or _parse_openai(content) != (content, ()):  # content that would be read as calls is wrapped, too
        return dump({"content": content, "tool_calls": to_openai(calls)})
    return content


# ---- the table ----

_Reader = Callable[[str], tuple[str, Calls]]
_Writer = Callable[[str, Calls], str]
_DIALECTS: dict[str, tuple[_Reader, _Writer]] = {
    "hermes": (_parse_hermes, _write_hermes),
    "llama": (_parse_llama, _write_llama),
    "openai": (_parse_openai, _write_openai),
    "none": (lambda text: (text, ()), lambda content, calls: content),
}
DIALECTS = tuple(_DIALECTS)


def _dialect(name: str) -> tuple[_Reader, _Writer]:
    if name not in _DIALECTS:
        raise UserError(f"there is no dialect {name!r} of tool calls. {nearest(name, _DIALECTS)}")
    return _DIALECTS[name]
