"""OpenAI's Responses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.external.dialects.dialect import Dialect, Histories, event
from contrib.external.dialects.fields import Fields, ignored_of_tools, kinds_left_out, listed_tools, refuse
from contrib.external.dialects.forms import constraint_of, openai_choice, schema_of
from contrib.external.dialects.openai_format import token_logprobs
from contrib.external.dialects.reading import call_of, limit, text_of, tool_of
from contrib.external.dialects.reading import tools_are_off as are_off
from contrib.external.requests import ProgramRequest
from contrib.external.responses import ProgramReply
from forge_env.core.types import Message, ToolSpec

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_SERVED = ("function", "namespace")
"""The kinds of tools that the model is offered."""
_LOGPROBS = "message.output_text.logprobs"
_ECHOED = (
    "instructions",
    "metadata",
    "previous_response_id",
    "tools",
    "tool_choice",
    "max_output_tokens",
    "store",
    "text",
)


class OpenAIResponses(Dialect):
    path = "/v1/responses"
    fields = Fields.of("openai_responses")

    def read(self, body: Any, histories: Histories) -> ProgramRequest:
        body = self.fields.check(body)
        refuse(body, "truncation", body.get("truncation") == "auto", "the program's items are read as they are")
        text = body.get("text") or {}
        refuse(body, "text", not isinstance(text, dict), "it is an object")
        schema = schema_of(text.get("format"), "text.format")
        include = body.get("include") or []
        refuse(body, "include", not isinstance(include, list), "it is a list")
        instructions = text_of(body.get("instructions"), "instructions")
        first: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
        echo = {name: body[name] for name in _ECHOED if body.get(name) is not None}
        tools = () if are_off(body) else _tools(body.get("tools"))
        return ProgramRequest(
            model=str(body.get("model") or ""),
            messages=(*first, *_history(body, histories), *_input(body.get("input"))),
            tools=tools,
            max_tokens=limit(body, "max_output_tokens"),
            constraint=constraint_of(schema, openai_choice(body.get("tool_choice")), tools),
            logprobs=_LOGPROBS in include,
            stream=body.get("stream") or False,
            ignored=(
                *self.fields.ignored_in(body),
                *(f"include {name}" for name in include if name != _LOGPROBS),
                *(f"text.{name}" for name in text if name != "format" and text[name] is not None),
                *dict.fromkeys(_ignored_of_tools(body.get("tools"))),
            ),
            echo=echo,
            leading=len(first),
        )

    def body(self, reply: ProgramReply, request: ProgramRequest) -> dict[str, Any]:
        is_cut = reply.finish_reason == "length"
        usage = {
            "input_tokens": reply.usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.usage["total_tokens"],
        }
        return {
            **_beginning_of(reply, request),
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": list(_items(reply, _by_model_name(request.echo.get("tools")))),
            "usage": usage,
        }

    def events(self, reply: ProgramReply, request: ProgramRequest) -> Iterator[bytes]:
        whole = self.body(reply, request)
        numbers = itertools.count()
        for kind, fields in self._events(_beginning_of(reply, request), whole):
            yield event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    def _events(self, beginning: dict[str, Any], whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "response.created", {"response": beginning}
        yield "response.in_progress", {"response": beginning}
        for index, item in enumerate(whole["output"]):
            place = {"output_index": index, "item_id": item["id"]}
            yield "response.output_item.added", {"output_index": index, "item": _empty(item)}
            if item["type"] == "function_call":
                yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
                done = {**place, "name": item["name"], "arguments": item["arguments"]}
                yield "response.function_call_arguments.done", done
            else:
                yield from _part_events(item["content"][0], place)
            yield "response.output_item.done", {"output_index": index, "item": item}
        yield f"response.{whole['status']}", {"response": whole}

    def error_events(self, refusal: RequestRefused) -> Iterator[bytes]:
        fields = {"code": refusal.code, "message": str(refusal), "param": refusal.param, "sequence_number": 0}
        yield event({"type": "error", **fields}, "error")

    def name_of(self, reply: ProgramReply) -> str:
        return f"resp_{reply.id}"


def _part_events(part: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    place = {**place, "content_index": 0}
    is_text = part["type"] == "output_text"
    kind = "response.output_text" if is_text else "response.reasoning_text"
    more: dict[str, Any] = {"logprobs": part["logprobs"]} if is_text else {}
    empty: dict[str, Any] = {"logprobs": []} if is_text else {}
    yield "response.content_part.added", {**place, "part": {**part, "text": "", **empty}}
    yield f"{kind}.delta", {**place, "delta": part["text"], **more}
    yield f"{kind}.done", {**place, "text": part["text"], **more}
    yield "response.content_part.done", {**place, "part": part}


def _beginning_of(reply: ProgramReply, request: ProgramRequest) -> dict[str, Any]:
    """The response before its output."""
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "previous_response_id": None,
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": None,
        "store": True,
        "text": {"format": {"type": "text"}},
        **request.echo,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "temperature": None,
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def _items(reply: ProgramReply, names: Mapping[str, dict[str, str]]) -> Iterator[dict[str, Any]]:
    message = reply.message
    status = "incomplete" if reply.finish_reason == "length" else "completed"
    if thought := message.get("reasoning_content"):
        content = [{"type": "reasoning_text", "text": thought}]
        yield {"id": f"rs_{reply.id}", "type": "reasoning", "summary": [], "content": content, "status": status}
    if message["content"] or "tool_calls" not in message:
        part = {"type": "output_text", "text": message["content"], "annotations": []}
        text = [{**part, "logprobs": token_logprobs(reply)}]
        head = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "status": status}
        yield {**head, "content": text}
    for call in message.get("tool_calls", ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        head = {"id": f"fc_{call['id']}", "type": "function_call", "call_id": call["id"], "status": status}
        yield {**head, **names.get(name, {"name": name}), "arguments": arguments}


def _empty(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it starts."""
    copy: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    return {**item, **copy, "status": "in_progress"}


def _history(body: Mapping[str, Any], histories: Histories) -> tuple[Message, ...]:
    name = body.get("previous_response_id")
    if name is None:
        return ()
    if not isinstance(name, str) or name not in histories:
        raise RequestRefused(
            400,
            f"previous_response_id is {name!r:.60}, and this episode has given no such response",
            param="previous_response_id",
        )
    return histories[name]


def _input(value: Any) -> list[Message]:
    """The messages of a list of items; the items of one response of the model make one message."""
    if isinstance(value, str) and value:
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise RequestRefused(400, "input is missing or empty; it is a text or a list of items", param="input")
    messages: list[Message] = []
    is_open = False  # whether the last message is one of the assistant's that calls may follow
    for i, item in enumerate(value):
        where = f"input[{i}]"
        kind = (item.get("type") or "message") if isinstance(item, dict) else None
        if kind == "reasoning":
            continue  # what was thought is in the tokens of its turn
        if kind == "message":
            message = _message(item, where)
            messages.append(message)
            is_open = message["role"] == "assistant"
        elif kind == "function_call":
            if not is_open:
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(_call(item, where))
            is_open = True
        elif kind == "function_call_output":
            id_ = item.get("call_id")
            output = text_of(item.get("output"), where)
            messages.append({"role": "tool", "content": output, "tool_call_id": id_ if isinstance(id_, str) else ""})
            is_open = False
        else:
            raise RequestRefused(
                400,
                f"{where} is {str(kind)!r:.60}; items are message, function_call, function_call_output, reasoning",
                param="input",
            )
    return messages


def _message(item: Mapping[str, Any], where: str) -> Message:
    role = _ROLES.get(item["role"]) if isinstance(item.get("role"), str) else None
    if role is None:
        raise RequestRefused(400, f"{where} has no role out of {', '.join(_ROLES)}", param=where)
    return {"role": role, "content": text_of(item.get("content"), where)}  # type: ignore[typeddict-item]


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(item.get("name"), str):
        raise RequestRefused(400, f"{where} is a function_call without a name", param=where)
    return call_of(item.get("call_id"), _model_name(item.get("namespace"), item["name"]), item.get("arguments"))


def _tools(items: Any) -> tuple[ToolSpec, ...]:
    tools: list[ToolSpec] = []
    namespaces: dict[str, str] = {}
    for where, namespace, item in _functions(items):
        if not isinstance(item.get("name"), str):
            raise RequestRefused(400, f"{where} is a function without a name", param="tools")
        name = _model_name(namespace, item["name"])
        if namespaces.setdefault(name, namespace) != namespace:
            raise RequestRefused(
                400, f"{where} is {name!r:.80} to the model, and so is a tool of another namespace", param="tools"
            )
        tools.append(tool_of(name, item.get("description"), item.get("parameters")))
    return tuple(tools)


def _functions(items: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The functions of a list of tools, including those in namespaces: the namespace or "", and the function."""
    for i, item in enumerate(listed_tools(items)):
        kind = item.get("type")
        if not isinstance(kind, str):
            raise RequestRefused(400, f"tools[{i}] has no type", param="tools")
        if kind == "function":
            yield f"tools[{i}]", "", item
        elif kind == "namespace":
            name, members = item.get("name"), item.get("tools")
            if not isinstance(name, str) or not name or not isinstance(members, list):
                raise RequestRefused(400, f"tools[{i}] is a namespace without a name or tools", param="tools")
            for j, function in enumerate(members):
                if isinstance(function, dict) and function.get("type") == "function":
                    yield f"tools[{i}].tools[{j}]", name, function


def _ignored_of_tools(items: Any) -> Iterator[str]:
    yield from kinds_left_out(items, _SERVED)
    functions = [function for _, _, function in _functions(items)]
    yield from ignored_of_tools(functions, ("type", "name", "description", "parameters"))
    for item in listed_tools(items):
        if item["type"] == "namespace":
            yield from kinds_left_out(item["tools"], ("function",))
            yield from ["tools.namespace.description"] * bool(item.get("description"))


def _model_name(namespace: Any, name: str) -> str:
    """The name under which the model calls a function; in a form that every API takes."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def _by_model_name(items: Any) -> dict[str, dict[str, str]]:
    """How the client calls the functions of namespaces, by the names under which the model does."""
    return {
        _model_name(namespace, function["name"]): {"name": function["name"], "namespace": namespace}
        for _, namespace, function in _functions(items)
        if namespace
    }
