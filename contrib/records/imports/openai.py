"""Reads chats in OpenAI's format: lines of its fine-tuning, and logs of requests with their responses.

    {"messages": [...], "tools": [...], "reward": 1.0}
    {"request": {"model": ..., "messages": [...], "tools": [...]}, "response": {"choices": [...], "usage": {...}}}

A line of `forge-env export --to openai --scores` has in `episode` what the episode was and how it was scored. An
assistant message with the weight 0 is history that the model was shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from contrib.common.endings import Ending, ending_of
from contrib.records.imports.build import BadRecord, Log, NotCarried
from forge_env.core.types import THOUGHTS, Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_KEPT = {key: key for key in ("name", "tool_call_id")} | dict.fromkeys(reversed(THOUGHTS), "reasoning_content")


def read_chat(record: Mapping[str, Any]) -> Log:
    log = Log(source="openai")
    request, response = record.get("request"), record.get("response")
    if isinstance(request, Mapping) and isinstance(response, Mapping):
        messages: Any = _pair(log, request, response)
    else:
        request, messages = record, record.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRecord("it has no messages; a record has messages, or a request and its response")
    for item in messages:
        message, weight = read_message(item)
        log.messages.append((message, message["role"] == "assistant" and weight != 0))
    log.tools = read_tools(request.get("tools"))
    if not log.model and isinstance(model := request.get("model"), str):
        log.model = model
    own = {key: record[key] for key in ("id", "reward", "success") if record.get(key) is not None}
    log.about = record["episode"] if isinstance(record.get("episode"), Mapping) else own
    return log


def _pair(log: Log, request: Mapping[str, Any], response: Mapping[str, Any]) -> list[Any]:
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, Mapping) for choice in choices):
        raise BadRecord("its response has no choices")
    if len(choices) > 1:
        raise NotCarried("with several choices, which are several conversations")
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise BadRecord("its request has no messages")
    choice, usage, model = choices[0], response.get("usage"), response.get("model")
    check_ending(response, choice)
    facts: dict[str, Any] = {"finish_reason": choice.get("finish_reason")}
    if isinstance(usage, Mapping):
        names = ("prompt_tokens", "completion_tokens")
        facts["usage"] = {name: usage[name] for name in names if isinstance(usage.get(name), int)}
    if choice.get("logprobs"):
        log.missing.add("logprobs")
    log.model = model if isinstance(model, str) else ""
    prompt = [{**item, "weight": 0} if isinstance(item, Mapping) else item for item in messages]
    log.turns = [facts]
    return [*prompt, choice.get("message")]


def check_ending(response: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
    """Leave out an answer that its endpoint has called broken."""
    is_broken = ending_of(choice.get("finish_reason")) is Ending.BROKEN
    if is_broken or response.get("error") or choice.get("error"):
        raise NotCarried("with an answer that its endpoint calls broken")


def read_message(item: Any) -> tuple[Message, Any]:
    if not isinstance(item, Mapping):
        raise BadRecord(f"a message is a {type(item).__name__}, not an object with role and content")
    role = item.get("role")
    if role == "function" or isinstance(item.get("function_call"), Mapping):
        raise NotCarried("with function_call, which tool_calls have replaced")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRecord(f"a message has the role {role!r}; the roles are {', '.join(_ROLES)}")
    content = item.get("content")
    if content is None and isinstance(item.get("refusal"), str):
        content = item["refusal"]
    message: dict[str, Any] = {"role": _ROLES[role], "content": text_of(content)}
    kept = {key: item[key] for key in _KEPT if isinstance(item.get(key), str)}
    message |= {_KEPT[key]: text for key, text in kept.items() if text or key == _KEPT[key]}
    if calls := item.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    return message, item.get("weight")  # type: ignore[return-value]


def _call(item: Any) -> dict[str, Any]:
    function = item.get("function") if isinstance(item, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRecord("a tool call has no function with a name")
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call_id = item.get("id")
    return {
        "id": call_id if isinstance(call_id, str) else "",
        "type": "function",
        "function": {"name": function["name"], "arguments": text},
    }


def text_of(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or not all(isinstance(part, Mapping) for part in content):
        raise BadRecord(f"a message's content is a {type(content).__name__}, not text and no list of parts")
    kinds = {str(part.get("type")) for part in content}
    if others := sorted(kinds - {"text", "input_text", "output_text"}):
        raise NotCarried(f"with {', '.join(others)}, where an Episode holds text only")
    if not all(isinstance(part.get("text"), str) for part in content):
        raise BadRecord("a part of a message has no text")
    return "".join(part["text"] for part in content)


def read_tools(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise BadRecord("its tools are not a list of objects")
    return [dict(tool) for tool in value]
