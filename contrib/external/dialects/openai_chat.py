"""OpenAI's Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.external.dialects.dialect import Histories
from contrib.external.dialects.fields import Fields, check_kind, ignored_of_tools, kinds_left_out, listed_tools, refuse
from contrib.external.dialects.forms import constraint_of, openai_choice, schema_of
from contrib.external.dialects.openai_format import OpenAIFormat, check_body, common, ignored_names, token_logprobs
from contrib.external.dialects.reading import call_of, text_of, tool_of, tools_are_off
from contrib.external.requests import ProgramRequest
from contrib.external.responses import ProgramReply
from forge_env.core.types import Message, ToolSpec

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class OpenAIChat(OpenAIFormat):
    path = "/v1/chat/completions"
    kind = "chat.completion"
    fields = Fields.of("openai_chat")

    def read(self, body: Any, histories: Histories) -> ProgramRequest:
        body = check_body(body, self.fields)
        refuse(body, "modalities", body.get("modalities") not in (None, ["text"]), "answers are text")
        items = body.get("messages")
        if not isinstance(items, list) or not items:
            raise RequestRefused(400, "messages is missing or empty; it is a list of messages", param="messages")
        messages = tuple(_message(item, f"messages[{i}]") for i, item in enumerate(items))
        tools = () if tools_are_off(body) else _tools(body.get("tools"))
        schema = schema_of(body.get("response_format"), "response_format")
        return ProgramRequest(
            messages=messages,
            tools=tools,
            constraint=constraint_of(schema, openai_choice(body.get("tool_choice")), tools),
            logprobs=check_kind(body, "logprobs", "true or false") or False,
            ignored=(
                *ignored_names(body, self.fields),
                *kinds_left_out(body.get("tools"), ("function",)),
                *ignored_of_tools(body.get("tools"), ("name", "description", "parameters"), "function"),
            ),
            **common(body),
        )

    def body(self, reply: ProgramReply, request: ProgramRequest) -> dict[str, Any]:
        content = reply.message["content"] or (None if "tool_calls" in reply.message else "")
        logprobs = {"content": token_logprobs(reply), "refusal": None} if request.logprobs else None
        choice = {"message": {**reply.message, "content": content}, "logprobs": logprobs}
        choices = [self.choice(choice, reply.finish_reason)]
        return {**self.head(reply, request), "choices": choices, "usage": reply.usage}

    def pieces(self, reply: ProgramReply) -> Iterator[tuple[dict[str, Any], str | None]]:
        logprobs = {"logprobs": {"content": token_logprobs(reply), "refusal": None}} if reply.logprobs else {}
        for delta in _deltas(reply.message):
            yield {"delta": delta, **logprobs}, None
            logprobs = {}  # all of them come with the first piece
        yield {"delta": {}}, reply.finish_reason


def _deltas(message: Message) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if "tool_calls" not in message else None}
    if "reasoning_content" in message:
        yield {"reasoning_content": message["reasoning_content"]}
    if message["content"]:
        yield {"content": message["content"]}
    for i, call in enumerate(message.get("tool_calls", ())):
        yield {"tool_calls": [{"index": i, **call}]}


def _message(value: Any, where: str) -> Message:
    name_of_role = value.get("role") if isinstance(value, dict) else None
    role = _ROLES.get(name_of_role) if isinstance(name_of_role, str) else None
    if role is None:
        raise RequestRefused(400, f"{where} has no role out of {', '.join(_ROLES)}", param=where)
    text = text_of(value.get("content"), where) or text_of(value.get("refusal"), where)
    message: dict[str, Any] = {"role": role, "content": text}
    if value.get("tool_calls"):
        message["tool_calls"] = _calls(value["tool_calls"], where)
    for name in ("tool_call_id", "name"):
        if isinstance(value.get(name), str):
            message[name] = value[name]
    return message  # type: ignore[return-value]


def _calls(items: Any, where: str) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for item in items if isinstance(items, list) else [None]:
        item = item if isinstance(item, dict) else {}
        function = item.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestRefused(400, f"{where} has tool_calls that are no list of function calls", param=where)
        calls.append(call_of(item.get("id"), function["name"], function.get("arguments")))
    return calls


def _tools(items: Any) -> tuple[ToolSpec, ...]:
    tools: list[ToolSpec] = []
    for i, item in enumerate(listed_tools(items)):
        if isinstance(kind := item.get("type"), str) and kind != "function":
            continue  # one of the service's own tools
        function = item.get("function") if kind == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestRefused(400, f"tools[{i}] is no function with a name", param="tools")
        tools.append(tool_of(function["name"], function.get("description"), function.get("parameters")))
    return tuple(tools)
