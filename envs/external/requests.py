"""Checks and reads the bodies of a program's requests.

A run samples as its own settings say. So a parameter that would change which tokens are sampled is refused or ignored,
and the response says which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_env.core.types import Message, ToolSpec

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "tool_choice", "parallel_tool_calls",
)  # fmt: skip
"""Parameters that a program may set and that are ignored."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_MAX_STOPS = 16


class RequestRefused(Exception):
    """A request is answered with an error in OpenAI's format.

    Example: ``Refused(400, "n is 2; one answer is given: leave n out", param="n")``
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, final: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.final = final
        """Whether the same request would be refused again; clients cannot see that from the status."""

    @property
    def reason(self) -> str:
        """The name by which refusals are counted: the code, else the parameter without its index, else the status."""
        return self.code or (self.param or "").partition("[")[0] or f"HTTP {self.status}"

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest:
    """One request of a program."""

    model: str
    """As the program calls it; all names mean the same model."""
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    """Text or token ids of /v1/completions; None for a chat."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()
    """Parameters that the program set and that are ignored."""


def read_chat(body: Any) -> ProgramRequest:
    """Read the body of /v1/chat/completions.

    Raises:
        Refused: saying what is wrong, or not offered.
    """
    body = _checked(body)
    for name in ("functions", "function_call"):
        _refuse(body, name, body.get(name), "functions are called through tools")
    _refuse(body, "logprobs", body.get("logprobs") or body.get("top_logprobs"), "none are given")
    items = body.get("messages")
    if not isinstance(items, list) or not items:
        raise RequestRefused(400, "messages is missing or empty; it is a list of messages", param="messages")
    messages = tuple(_message(item, f"messages[{i}]") for i, item in enumerate(items))
    tools = () if body.get("tool_choice") == "none" else _tools(body.get("tools"))
    return ProgramRequest(messages=messages, tools=tools, **_common(body))


def read_completion(body: Any) -> ProgramRequest:
    """Read the body of /v1/completions.

    Raises:
        Refused: saying what is wrong, or not offered.
    """
    body = _checked(body)
    _refuse(body, "logprobs", body.get("logprobs"), "none are given")
    _refuse(body, "echo", body.get("echo"), "the prompt is not repeated")
    _refuse(body, "suffix", body.get("suffix"), "nothing is filled in")
    _refuse(body, "best_of", body.get("best_of") not in (None, 1), "one answer is sampled")
    return ProgramRequest(prompt=_prompt(body.get("prompt")), **_common(body))


def _checked(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise RequestRefused(400, "the body is no JSON object")
    _refuse(body, "n", body.get("n") not in (None, 1), "one answer is given to a request")
    _refuse(body, "logit_bias", body.get("logit_bias"), "it would change what training learns from")
    form = body.get("response_format")
    wants = form.get("type") if isinstance(form, dict) else form
    _refuse(body, "response_format", wants not in (None, "text"), "answers are not forced into a form")
    _refuse(body, "modalities", body.get("modalities") not in (None, ["text"]), "answers are text")
    return body


def _refuse(body: Mapping[str, Any], name: str, wrong: Any, reason: str) -> None:
    if wrong:
        shown = json.dumps(body.get(name))[:80]
        raise RequestRefused(400, f"{name} is {shown}, which is not offered, for {reason}: leave it out", param=name)


def _common(body: Mapping[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    kept = ("none", "auto")  # of tool_choice, which are honoured
    return {
        "model": str(body.get("model") or ""),
        "max_tokens": _limit(body),
        "stop": _stops(body.get("stop")),
        "stream": bool(body.get("stream")),
        "include_usage": isinstance(options, dict) and bool(options.get("include_usage")),
        "ignored": tuple(n for n in SAMPLING if body.get(n) is not None and body[n] not in kept),
    }


def _limit(body: Mapping[str, Any]) -> int | None:
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise RequestRefused(400, f"{name} is {json.dumps(value)[:80]}; it is a whole number from 1 on", param=name)
    return value


def _stops(value: Any) -> tuple[str, ...]:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    is_valid = isinstance(texts, list) and all(isinstance(text, str) and text for text in texts)
    if not is_valid or len(texts) > _MAX_STOPS:
        raise RequestRefused(400, f"stop is a text or up to {_MAX_STOPS} texts, none of them empty", param="stop")
    return tuple(texts)


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        (value,) = value
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(token) is int and token >= 0 for token in value):
        return tuple(value)
    raise RequestRefused(400, "prompt is one text or one list of token ids, and not empty", param="prompt")


def _message(value: Any, where: str) -> Message:
    name_of_role = value.get("role") if isinstance(value, dict) else None
    role = _ROLES.get(name_of_role) if isinstance(name_of_role, str) else None
    if role is None:
        raise RequestRefused(400, f"{where} has no role out of {', '.join(_ROLES)}", param=where)
    message: dict[str, Any] = {"role": role, "content": _text(value.get("content"), where)}
    if value.get("tool_calls"):
        message["tool_calls"] = _calls(value["tool_calls"], where)
    for name in ("tool_call_id", "name"):
        if isinstance(value.get(name), str):
            message[name] = value[name]
    return message  # type: ignore[return-value]


def _text(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part if isinstance(part, str) else _part(part) for part in parts]
    if any(text is None for text in texts):
        raise RequestRefused(400, f"{where} holds content that is no text; the model reads text only", param=where)
    return "".join(text for text in texts if text)


def _part(part: Any) -> str | None:
    if not isinstance(part, dict):
        return None
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else None


def _calls(items: Any, where: str) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for item in items if isinstance(items, list) else [None]:
        item = item if isinstance(item, dict) else {}
        function = item.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestRefused(400, f"{where} has tool_calls that are no list of function calls", param=where)
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
        id_ = item["id"] if isinstance(item.get("id"), str) else ""
        calls.append({"id": id_, "type": "function", "function": {"name": function["name"], "arguments": text}})
    return calls


def _tools(items: Any) -> tuple[ToolSpec, ...]:
    tools: list[ToolSpec] = []
    for i, item in enumerate(items if isinstance(items, Sequence) else ()):
        function = item.get("function") if isinstance(item, dict) and item.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestRefused(
                400, f"tools[{i}] is no function with a name; the model calls functions only", param="tools"
            )
        parameters = function.get("parameters")
        spec = {
            "name": function["name"],
            "description": str(function.get("description") or ""),
            "parameters": parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}},
        }
        tools.append({"type": "function", "function": spec})  # type: ignore[typeddict-item]
    return tuple(tools)
