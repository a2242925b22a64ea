"""Answers and refusals of a chat endpoint, with the API key removed from both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from contrib.chat.refusals import says_context_full
from contrib.common.endings import Ending, ending_of
from contrib.common.json_text import decoded, read

_SECRET_LENGTH = 8  # shorter keys, such as "EMPTY" and "none" for local servers, are not secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    message: Mapping[str, Any]
    """The message. A `function_call` is one of its `tool_calls`."""
    finish_reason: str
    """"stop" or "length"."""
    usage: Mapping[str, int]
    """"prompt_tokens" and "completion_tokens"."""

    @property
    def text(self) -> str:
        """The content; without content, the refusal."""
        return text_of(self.message.get("content")) or text_of(self.message.get("refusal"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One attempt that came to no answer."""

    reason: str
    is_full: bool = False
    """Whether the conversation is too long for the endpoint."""
    retry: bool = True
    """Whether another attempt may help."""
    wait: float = 0.0
    """Seconds that the server asks the client to wait."""


def text_of(content: Any) -> str:
    """The text of a content, which some endpoints write in parts."""
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def thought_of(content: Any) -> str:
    """What a model thought, in the parts of a content where Mistral's models write it."""
    parts = content if isinstance(content, list) else []
    return "".join(text_of(part.get("thinking")) for part in parts if isinstance(part, dict))


def body_of(response: httpx.Response) -> Any:
    try:
        body = read(decoded(response.content))
    except (ValueError, RecursionError):
        return response.text
    return body[0] if isinstance(body, list) and len(body) == 1 else body  # Gemini's errors are in a list


def redact(value: Any, key: str) -> Any:
    """Remove the key from a parsed body: in parsed JSON no escape can hide it."""
    if len(key) < _SECRET_LENGTH:
        return value
    try:
        return _replace(value, key)
    except RecursionError:
        return "JSON that is nested too deep"


def _replace(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return value.replace(key, "[API key]")
    if isinstance(value, dict):
        return {_replace(k, key): _replace(v, key) for k, v in value.items()}
    return [_replace(item, key) for item in value] if isinstance(value, list) else value


def read_reply(data: Any) -> Reply | Broken:
    """The answer in the body of a response. An answer that its maker calls broken is none, whatever text it holds."""
    choice = _choice_of(data)
    message, reason = choice.get("message"), choice.get("finish_reason")
    ending = ending_of(reason)
    if not isinstance(message, dict) or error_of(data) is not data:
        problem = f"its answer is no chat completion: {message_of(data)}"
    else:
        message = _with_calls(message)
        problem = f"it ended the answer with the finish reason {reason!r:.80}"
        is_empty = not (text_of(message.get("content")) or message.get("tool_calls"))
        if ending is not Ending.BROKEN and not (ending is Ending.FULL and is_empty):
            usage = data.get("usage")
            counts = {name: _count(usage, name) for name in ("prompt_tokens", "completion_tokens")}
            finish = "stop" if ending is Ending.WHOLE else "length"
            return Reply(message=message, finish_reason=finish, usage=counts)
    is_full = ending is Ending.FULL or says_context_full([data, error_of(data)])
    return Broken(reason=problem, is_full=is_full, retry=not says_no_quota(data))


def _choice_of(data: Any) -> Mapping[str, Any]:
    choices = data.get("choices") if isinstance(data, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else {}


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message with the call that it has in the field of OpenAI's first tools."""
    call = message.get("function_call")
    if message.get("tool_calls") or not isinstance(call, dict):
        return message
    return {**message, "tool_calls": [{"type": "function", "function": call}]}


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return 0
    return int(value) if 0 < value < math.inf else 0  # some servers write 5.0


def error_of(data: Any) -> Any:
    """What the body, or its answer, calls an error; the body if nothing does."""
    if not isinstance(data, dict):
        return data
    status = data.get("base_resp")  # MiniMax's; its code is 0 if all is well
    base_error = status if isinstance(status, dict) and status.get("status_code") else None
    return data.get("error") or _choice_of(data).get("error") or base_error or data


def headers_in(data: Any) -> dict[str, str]:
    """The headers of a pause that an error holds: those of OpenRouter's providers, and Google's `retryDelay`."""
    error = error_of(data)
    metadata, details = (error.get("metadata"), error.get("details")) if isinstance(error, dict) else (None, None)
    headers = metadata.get("headers") if isinstance(metadata, dict) else None
    result = {name: str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}
    for item in details if isinstance(details, list) else ():
        if isinstance(item, dict) and "retryDelay" in item:
            result["retry-after"] = str(item["retryDelay"])
    return result


def says_no_quota(data: Any) -> bool:
    """Whether a refusal is for lack of credit; a retry would not help."""
    error = error_of(data)
    names = (error.get("code"), error.get("type")) if isinstance(error, dict) else ()
    return any(name in ("insufficient_quota", "exceeded_current_quota_error") for name in names)


def message_of(data: Any) -> str:
    """Return the server's message, on one line and shortened; servers put it in different fields."""
    error = error_of(data)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error.get("status_msg") or error
    text = " ".join(str(error).split()) or "no reason given"
    return text if len(text) <= 300 else text[:297] + "..."
