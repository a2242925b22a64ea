"""Answers and refusals of a chat endpoint, with the API key removed from both."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

_SECRET_LENGTH = 8  # shorter keys, such as "EMPTY" and "none" for local servers, are no secrets
_CONTEXT_FULL = re.compile(
    r"context[_ ]?(length|window|size)|maximum (context|model|input|prompt)|max_model_len|"
    r"(prompt|input|message\w*) (is|are) too long|too many (input |prompt )?tokens",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer of the endpoint."""

    message: Mapping[str, Any]
    """The message, unchanged."""
    finish_reason: str
    """"stop" or "length"."""
    usage: Mapping[str, int]
    """"prompt_tokens" and "completion_tokens"."""

    @property
    def text(self) -> str:
        """The content; without content, the refusal."""
        content = self.message.get("content")
        if isinstance(content, list):  # in parts, as some endpoints write it
            content = "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
        if not content:
            content = self.message.get("refusal")
        return content if isinstance(content, str) else ""


def body_of(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        return response.text


def redacted(value: Any, key: str) -> Any:
    """Remove the key from a parsed body: in parsed JSON no escape can hide it."""
    if len(key) < _SECRET_LENGTH:
        return value
    try:
        return _replaced(value, key)
    except RecursionError:
        return "JSON that is nested too deep"


def _replaced(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return value.replace(key, "[API key]")
    if isinstance(value, dict):
        return {_replaced(k, key): _replaced(v, key) for k, v in value.items()}
    return [_replaced(item, key) for item in value] if isinstance(value, list) else value


def read_reply(data: Any) -> Reply | None:
    try:
        choice = data["choices"][0]
        message = choice["message"]
    except (KeyError, IndexError, TypeError):
        return None
    if not isinstance(message, dict):
        return None
    used = data.get("usage")
    counts = {name: _count(used, name) for name in ("prompt_tokens", "completion_tokens")}
    finish = "length" if choice.get("finish_reason") in ("length", "max_tokens") else "stop"
    return Reply(message=message, finish_reason=finish, usage=counts)


def _count(used: Any, name: str) -> int:
    value = used.get(name) if isinstance(used, dict) else None
    return value if isinstance(value, int) and value > 0 else 0


def _error_of(data: Any) -> Any:
    return (data.get("error") or data) if isinstance(data, dict) else data


def says_context_full(data: Any) -> bool:
    """Whether a refusal is about the length of the conversation; servers word it differently."""
    return _code_of(data) == "context_length_exceeded" or bool(_CONTEXT_FULL.search(message_of(data)))


def says_no_quota(data: Any) -> bool:
    """Whether a refusal is for lack of credit; a retry would not help."""
    return _code_of(data) == "insufficient_quota"


def _code_of(data: Any) -> Any:
    error = _error_of(data)
    return error.get("code") if isinstance(error, dict) else None


def message_of(data: Any) -> str:
    """Return the server's message, on one line and shortened; servers put it in different fields."""
    error = _error_of(data)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    text = " ".join(str(error).split()) or "no reason given"
    return text if len(text) <= 300 else text[:297] + "..."


def retry_after(response: httpx.Response) -> float:
    """Seconds of Retry-After; a date counts as 0."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
