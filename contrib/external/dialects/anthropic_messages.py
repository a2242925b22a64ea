"""Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from contrib.common.http_server import RequestRefused
from contrib.common.json_text import read, write
from contrib.external.dialects.dialect import Dialect, Histories, event
from contrib.external.dialects.fields import Fields, check_kind, ignored_of_tools, kinds_left_out, listed_tools, refuse
from contrib.external.dialects.forms import anthropic_choice, constraint_of, schema_of
from contrib.external.dialects.reading import call_of, limit, stops, text_of, tool_of
from contrib.external.dialects.reading import tools_are_off as are_off
from contrib.external.requests import ProgramRequest
from contrib.external.responses import ProgramReply
from forge_env.core.types import Message, ToolSpec

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_SERVED = ("custom",)
"""The kinds of tools that the model is offered, with those that name no kind."""
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicMessages(Dialect):
    path = "/v1/messages"
    fields = Fields.of("anthropic_messages")
    versions: ClassVar = {b"anthropic-version": (b"2023-06-01", b"2026-10-21")}

    def read(self, body: Any, histories: Histories) -> ProgramRequest:
        body = self.fields.check(body)
        if body.get("max_tokens") is None:
            raise RequestRefused(400, "max_tokens is missing; it is a whole number from 1 on", param="max_tokens")
        return self._read(body)

    def _read(self, body: dict[str, Any]) -> ProgramRequest:
        config = body.get("output_config") or {}
        refuse(body, "output_config", not isinstance(config, dict), "it is an object")
        schema = schema_of(config.get("format"), "output_config.format")
        if schema is None:
            schema = schema_of(body.get("output_format"), "output_format")  # its name before output_config
        items = body.get("messages")
        if not isinstance(items, list) or not items:
            raise RequestRefused(400, "messages is missing or empty; it is a list of messages", param="messages")
        messages = [m for i, item in enumerate(items) for m in _messages(item, f"messages[{i}]")]
        if messages and messages[-1]["role"] == "assistant":
            raise RequestRefused(
                400,
                "the last message is the assistant's, and an answer is not continued: leave it out",
                param="messages",
            )
        system = text_of(body.get("system"), "system")
        first: list[Message] = [{"role": "system", "content": system}] if system else []
        tools = () if are_off(body) else _tools(body.get("tools"))
        return ProgramRequest(
            model=str(body.get("model") or ""),
            messages=(*first, *messages),
            tools=tools,
            max_tokens=limit(body, "max_tokens"),
            stop=stops(body.get("stop_sequences"), "stop_sequences"),
            constraint=constraint_of(schema, anthropic_choice(body.get("tool_choice")), tools),
            stream=body.get("stream") or False,
            ignored=(*self.fields.ignored_in(body), *_ignored_parts(body, config)),
        )

    def body(self, reply: ProgramReply, request: ProgramRequest) -> dict[str, Any]:
        return {**_head(reply, request), "content": list(_blocks(reply.message)), **_end(reply), "usage": _usage(reply)}

    def events(self, reply: ProgramReply, request: ProgramRequest) -> Iterator[bytes]:
        no_stop = {"stop_reason": None, "stop_sequence": None}
        start = {**_head(reply, request), "content": [], **no_stop, "usage": {**_usage(reply), "output_tokens": 0}}
        yield _event("message_start", message=start)
        for index, block in enumerate(_blocks(reply.message)):
            empty, deltas = _pieces(block)
            yield _event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event("message_delta", delta=_end(reply), usage={"output_tokens": _usage(reply)["output_tokens"]})
        yield _event("message_stop")

    def error(self, refusal: RequestRefused) -> dict[str, Any]:
        kind = _ERRORS.get(refusal.status) or ("api_error" if refusal.status >= 500 else "invalid_request_error")
        # Programs know a full context by these words.
        is_full = refusal.code == "context_length_exceeded"
        return {
            "type": "error",
            "error": {"type": kind, "message": f"prompt is too long: {refusal}" if is_full else str(refusal)},
        }

    def error_events(self, refusal: RequestRefused) -> Iterator[bytes]:
        yield event(self.error(refusal), "error")


class AnthropicCount(AnthropicMessages):
    """The number of tokens that a request of Messages has."""

    path = "/v1/messages/count_tokens"
    fields = Fields.of("anthropic_count")

    def read(self, body: Any, histories: Histories) -> ProgramRequest:
        body = self.fields.check(body)
        without_effect = tuple(self.fields.ignored_in(body))
        settings = {name: value for name, value in body.items() if name in self.fields.honoured}
        return replace(self._read(settings), counts=True, constraint=None, ignored=without_effect)

    def body(self, reply: ProgramReply, request: ProgramRequest) -> dict[str, Any]:
        return {"input_tokens": reply.usage["prompt_tokens"]}


def _ignored_parts(body: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """What is ignored of fields that are honoured otherwise."""
    thinking, choice = body.get("thinking"), body.get("tool_choice")
    if thinking and not (isinstance(thinking, dict) and thinking.get("type") == "disabled"):
        yield "thinking"
    yield from (f"output_config.{name}" for name in config if name != "format" and config[name] is not None)
    if isinstance(choice, dict) and check_kind(choice, "disable_parallel_tool_use") and choice.get("type") == "auto":
        # A call that is forced is the only one.
        yield "tool_choice.disable_parallel_tool_use"
    contents = {"system": [body.get("system")], "messages": [item.get("content") for item in body["messages"]]}
    for name, parts in contents.items():
        blocks = [block for part in parts if isinstance(part, list) for block in part]
        if any(isinstance(block, dict) and block.get("cache_control") for block in blocks):
            yield f"{name}.cache_control"
    yield from kinds_left_out(body.get("tools"), _SERVED)
    yield from ignored_of_tools(body.get("tools"), ("type", "name", "description", "input_schema"))


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _head(reply: ProgramReply, request: ProgramRequest) -> dict[str, Any]:
    return {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "model": request.model}


def _end(reply: ProgramReply) -> dict[str, Any]:
    if reply.stop_text:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_text}
    return {"stop_reason": _STOP_REASONS[reply.finish_reason], "stop_sequence": None}


def _usage(reply: ProgramReply) -> dict[str, int]:
    return {
        "input_tokens": reply.usage["prompt_tokens"],
        "output_tokens": reply.usage["completion_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    if thought := message.get("reasoning_content"):
        yield {"type": "thinking", "thinking": thought, "signature": ""}
    if message["content"]:
        yield {"type": "text", "text": message["content"]}
    for call in message.get("tool_calls", ()):
        function = call["function"]
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": read(function["arguments"])}


def _pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and what is added to it."""
    if block["type"] == "tool_use":
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": write(block["input"])}]
    name = "thinking" if block["type"] == "thinking" else "text"
    return {**block, name: ""}, [{"type": f"{name}_delta", name: block[name]}]


def _messages(value: Any, where: str) -> Iterator[Message]:
    """The messages of one of Anthropic's; results of tools become messages of their own."""
    role = value.get("role") if isinstance(value, dict) else None
    if role not in ("user", "assistant", "system"):
        raise RequestRefused(400, f"{where} has no role out of user, assistant", param=where)
    content = value.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise RequestRefused(400, f"{where} has no content; it is a text or a list of blocks", param=where)
    if role == "assistant":
        yield _assistant(blocks, where)
        return
    texts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") != "tool_result":
            texts.append(block)
            continue
        if texts:
            yield {"role": role, "content": text_of(texts, where)}
            texts = []
        id_, result = block.get("tool_use_id"), text_of(block.get("content"), where)
        if not result and check_kind(block, "is_error", "true or false"):
            result = "Error"  # all that the model is told of it
        yield {"role": "tool", "content": result, "tool_call_id": id_ if isinstance(id_, str) else ""}
    if texts or not blocks:
        yield {"role": role, "content": text_of(texts, where)}


def _assistant(blocks: list[dict[str, Any]], where: str) -> Message:
    content = [block for block in blocks if block.get("type") not in ("tool_use", "thinking", "redacted_thinking")]
    message: Message = {"role": "assistant", "content": text_of(content, where)}
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    if any(not isinstance(block.get("name"), str) for block in calls):
        raise RequestRefused(400, f"{where} has a tool_use without a name", param=where)
    if calls:
        message["tool_calls"] = [call_of(call.get("id"), call["name"], call.get("input")) for call in calls]
    return message


def _tools(items: Any) -> tuple[ToolSpec, ...]:
    tools: list[ToolSpec] = []
    for i, item in enumerate(listed_tools(items)):
        if (item.get("type") or "custom") not in _SERVED:
            continue  # one of the service's own tools
        if not isinstance(item.get("name"), str):
            raise RequestRefused(400, f"tools[{i}] has no name", param="tools")
        tools.append(tool_of(item["name"], item.get("description"), item.get("input_schema")))
    return tuple(tools)
