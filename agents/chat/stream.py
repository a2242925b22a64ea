"""Streamed answers: server-sent events, assembled into the body of an unstreamed answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from agents.chat.reply import body_of


async def read_body(response: httpx.Response) -> Any:
    """The body of an answer, streamed or not; None for a stream that ended too early."""
    if response.status_code != 200 or "text/event-stream" not in response.headers.get("content-type", ""):
        await response.aread()
        return body_of(response)
    answer = _Answer()
    async for data in _events(response):
        if data == "[DONE]":
            break
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            return data
        if not isinstance(chunk, dict) or chunk.get("error"):
            return chunk
        answer.add(chunk)
    return answer.body()


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the data of the events; comments and event names carry no data."""
    async for line in _lines(response):
        if line.startswith(b"data:"):
            yield line.removeprefix(b"data:").decode("utf-8", "replace").strip()


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
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: Any = None
        self._usage: Any = None

    def add(self, chunk: dict[str, Any]) -> None:
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return
        self._finish = choice.get("finish_reason") or self._finish
        delta = choice.get("delta")
        for name, value in delta.items() if isinstance(delta, dict) else ():
            if name == "tool_calls" and isinstance(value, list):
                for place, call in enumerate(value):
                    self._add_call(place, call)
            elif isinstance(value, str) and name != "role":
                self._texts.setdefault(name, []).append(value)

    def _add_call(self, place: int, call: Any) -> None:
        if not isinstance(call, dict):
            return
        index = call.get("index")
        known = self._calls.setdefault(
            index if isinstance(index, int) else place, {"type": "function", "function": {"name": "", "arguments": ""}}
        )
        if call.get("id"):
            known["id"] = call["id"]
        if error := call.get("unreadable"):
            known["function"]["unreadable"] = error
        function = call.get("function")
        for name in ("name", "arguments"):
            part = function.get(name) if isinstance(function, dict) else None
            known["function"][name] += part if isinstance(part, str) else json.dumps(part) if part else ""

    def body(self) -> Any:
        """The body of an unstreamed answer; None if no chunk had a finish reason."""
        if self._finish is None:
            return None
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message |= {name: "".join(parts) for name, parts in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return {"choices": [{"message": message, "finish_reason": self._finish}], "usage": self._usage}
