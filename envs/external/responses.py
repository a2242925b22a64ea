"""Responses to a program: completions and chunks in OpenAI's formats."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.external.requests import ProgramRequest
from forge_env.core.types import Action, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramReply:
    """One response of the model, as the program receives it."""

    id: str
    message: Message
    finish_reason: str
    """"stop", "length" or "tool_calls"."""
    usage: Mapping[str, int]
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, action: Action, request: ProgramRequest, *, turn: int) -> ProgramReply:
        """Make a response of an action: cut at the first stop text, with only those calls that could be parsed."""
        content, finish = _cut(action, request.stop)
        message: Message = {"role": "assistant", "content": content}
        if reasoning := action.message.get("reasoning_content"):
            message["reasoning_content"] = reasoning
        if calls := _calls(action, turn):
            message["tool_calls"] = calls
        counts = action.usage or {}
        used = {name: int(counts.get(name, 0)) for name in ("prompt_tokens", "completion_tokens")}
        return cls(
            id=f"turn-{turn}",
            message=message,
            finish_reason="tool_calls" if calls and finish == "stop" else finish,
            usage={**used, "total_tokens": sum(used.values())},
        )

    def body(self, request: ProgramRequest) -> dict[str, Any]:
        """Return the whole response as one object."""
        if request.prompt is not None:
            choice: dict[str, Any] = {"text": self.message["content"], "logprobs": None}
        else:
            choice = {"message": {**self.message, "content": self._content}, "logprobs": None}
        return {**self._head(request, ""), "choices": [self._choice(choice, self.finish_reason)], "usage": self.usage}

    def chunks(self, request: ProgramRequest) -> Iterator[dict[str, Any]]:
        """Give the response in pieces, for a stream."""
        head = self._head(request, ".chunk")
        if request.include_usage:
            head["usage"] = None
        for delta in self._deltas() if request.prompt is None else ():
            yield {**head, "choices": [self._choice({"delta": delta}, None)]}
        if request.prompt is None:
            last: dict[str, Any] = {"delta": {}}
        else:
            last = {"text": self.message["content"], "logprobs": None}
        yield {**head, "choices": [self._choice(last, self.finish_reason)]}
        if request.include_usage:
            yield {**head, "choices": [], "usage": self.usage}

    @property
    def _content(self) -> str | None:
        return self.message["content"] or (None if "tool_calls" in self.message else "")

    def _deltas(self) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": "" if "tool_calls" not in self.message else None}
        if "reasoning_content" in self.message:
            yield {"reasoning_content": self.message["reasoning_content"]}
        if self.message["content"]:
            yield {"content": self.message["content"]}
        for i, call in enumerate(self.message.get("tool_calls", ())):
            yield {"tool_calls": [{"index": i, **call}]}

    def _head(self, request: ProgramRequest, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if request.prompt is None else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": request.model}

    def _choice(self, content: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, **content, "finish_reason": finish_reason}


def call_id(turn: int, model_id: str) -> str:
    """Return the id of a call as the program sees it; the ids that a model gives start anew in every turn."""
    return f"turn{turn}-{model_id}"


def model_call_id(seen: str) -> str:
    """Return the id that the model gave, out of one of `call_id`; any other text stays as it is."""
    turn, dash, model_id = seen.partition("-")
    return model_id if dash and turn.startswith("turn") and turn[4:].isdecimal() else seen


def _cut(action: Action, stop: Sequence[str]) -> tuple[str, str]:
    content = action.message["content"] or ""
    raws = [call.raw for call in action.tool_calls if call.arguments is None and call.raw]
    if raws and raws[0] not in content:  # an agent leaves the text of all calls in the content, or of none
        content += "".join(raws)
    positions = [position for position in (content.find(text) for text in stop) if position >= 0]
    return (content[: min(positions)], "stop") if positions else (content, action.finish_reason)


def _calls(action: Action, turn: int) -> list[dict[str, Any]]:
    """Return the calls that could be parsed; the text of the others is part of the content."""
    return [
        {
            "id": call_id(turn, call.id),
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in action.tool_calls
        if call.arguments is not None
    ]
