"""Streamed answers: server-sent events, assembled into the body of an unstreamed answer."""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from agents.renderer.model_json import dump
from contrib.chat.reply import body_of, error_of, text_of, thought_of
from contrib.common.endings import ending_of
from contrib.common.json_text import read


async def read_body(response: httpx.Response) -> Any:
    """The body of an answer, streamed or not; None for a stream that ended too early."""
    if response.status_code != 200 or "text/event-stream" not in response.headers.get("content-type", "").lower():
        await response.aread()
        body = body_of(response)
        if response.status_code != 200 or not isinstance(body, str) or not body.startswith(("data:", "event:", ":")):
            return body
    answer = _Answer()
    text = ""
    async for name, data in _events(response):
        if data == "[DONE]":
            break
        text += data
        try:
            chunk = read(text)
        except (ValueError, RecursionError):
            continue  # an event may have several lines of data
        text = ""
        if not isinstance(chunk, dict):
            return chunk
        message_text = "choices" not in chunk and text_of(chunk.get("message"))
        error = error_of(chunk)
        if error is not chunk or message_text or "error" in (name, chunk.get("object"), chunk.get("type")):
            return {"error": error}
        answer.add(chunk)
    return text or answer.body()


async def _events(response: httpx.Response) -> AsyncIterator[tuple[str, str]]:
    """Yield the names and the data of the events; comments have no data. llama.cpp writes "error" for "data"."""
    name = ""
    async for line in _lines(response):
        field, _, value = line.removeprefix(codecs.BOM_UTF8).partition(b":")
        text = value.decode("utf-8", "replace").strip()
        if field in (b"data", b"error") and text:
            yield name if field == b"data" else "error", text
        elif field == b"event" or not line.strip():
            name = text


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines as bytes, which are cut only at LF and CR: text is also cut at U+2028, which JSON may hold."""
    rest = b""
    async for part in response.aiter_bytes():
        lines = (rest + part).splitlines(keepends=True)  # if a part ends between CR and LF, there is an empty line more
        rest = lines.pop() if lines and not lines[-1].endswith((b"\r", b"\n")) else b""
        for line in lines:
            yield line
    yield rest


class _Answer:
    """Collects the chunks of the first choice."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._calls, self._function_call = _Calls(), _Calls()
        self._reasons: list[Any] = []
        self._usage: Any = None
        self._is_chat = False

    def add(self, chunk: dict[str, Any]) -> None:
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices")
        items = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        choice = next((choice for choice in items if choice.get("index") in (0, None)), {})
        reason = choice.get("finish_reason")
        if reason and reason != "null":  # DashScope's text for none
            self._reasons.append(reason)
        self._is_chat = self._is_chat or "delta" in choice or "message" in choice
        delta = choice.get("delta", choice.get("message"))
        for name, value in delta.items() if isinstance(delta, dict) else ():
            if thought := thought_of(value):
                self._texts.setdefault("reasoning_content", []).append(thought)
            if name == "tool_calls":
                parts = value if isinstance(value, list) else [value]
                for place, part in enumerate(parts):
                    self._calls.add(part, place if len(parts) > 1 else None)
            elif name == "function_call":
                self._function_call.add({"function": value}, None)
            elif name != "role" and (text := text_of(value)):
                texts = self._texts.setdefault(name, [])
                if reason and "delta" not in choice and text.startswith("".join(texts)):
                    texts.clear()  # MiniMax ends with the whole message again
                texts.append(text)

    def body(self) -> Any:
        """The body of an unstreamed answer; None if no chunk said how the answer ended."""
        if not self._reasons:
            return None
        if not self._is_chat:  # of the older API: its text is in another field
            return {"choices": [{"finish_reason": self._reasons[-1]}]}
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message |= {name: "".join(parts) for name, parts in self._texts.items()}
        if calls := self._calls.whole() or self._function_call.whole():
            message["tool_calls"] = calls
        reason = max(self._reasons, key=lambda reason: ending_of(reason).value)
        return {"choices": [{"message": message, "finish_reason": reason}], "usage": self._usage}


class _Calls:
    """Joins the parts of calls. Servers repeat ids and names, number all calls alike, or do not number them."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, dict[str, Any]]] = []
        """The number of a call, and the call."""

    def add(self, part: Any, place: int | None) -> None:
        """Add a part; `place` is its place in a chunk with several."""
        if not isinstance(part, dict):
            return
        function = part.get("function", part)
        function = function if isinstance(function, dict) else {}
        name, arguments = text_of(function.get("name")), function.get("arguments")
        is_object = arguments is not None and not isinstance(arguments, str)
        text = dump(arguments) if is_object else arguments or ""
        id_, index = text_of(part.get("id")), part.get("index")
        number = index if isinstance(index, (int, float)) else None if id_ else place  # some servers write 1.0
        entry = self._find(number, id_)
        if entry is None or _begins(entry, id_, name, text, is_numbered=number is not None):
            entry = {"type": "function", "function": {"name": "", "arguments": ""}}
            self._calls.append((len(self._calls) if number is None else number, entry))
        if id_:
            entry.setdefault("id", id_)
        call = entry["function"]
        if error := part.get("unreadable"):
            call["unreadable"] = error
        if name != call["name"]:
            call["name"] += name
        if not (id_ and _is_object(call["arguments"]) and text == call["arguments"]):  # else it is sent again
            call["arguments"] = text if is_object else call["arguments"] + text

    def whole(self) -> list[dict[str, Any]]:
        """The calls by their numbers, those of one number in the order of their first parts."""
        return [call for _, call in sorted(self._calls, key=lambda pair: pair[0])]

    def _find(self, number: float | None, id_: str) -> dict[str, Any] | None:
        """The call that a part belongs to, unless it begins another one."""
        calls = [call for other, call in self._calls if number in (None, other)]
        return next((call for call in calls if id_ and call.get("id") == id_), calls[-1] if calls else None)


def _begins(entry: dict[str, Any], id_: str, name: str, text: str, *, is_numbered: bool) -> bool:
    """Whether a part begins another call than the known one. Only a part with a name may."""
    call = entry["function"]
    if not name or not call["name"]:
        return False
    if id_ and id_ != entry.get("id", id_):
        return True
    if name != call["name"]:
        return bool(call["arguments"]) or not is_numbered
    is_again = bool(id_) and text == call["arguments"]
    return _is_object(call["arguments"]) and text.startswith("{") and not is_again


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
