"""What a program is answered: completions and chunks in OpenAI's shapes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.external.questions import Question
from forge_env.core.types import Action, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer of the model, as the program is given it."""

    id: str
    message: Message
    finish_reason: str
    """"stop", "length" or "tool_calls"."""
    usage: Mapping[str, int]
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, action: Action, question: Question, *, turn: int) -> Reply:
        """The answer that an action is: cut where a stop text begins, and with calls that can be made only."""
        content, finish = _cut(action, question.stop)
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

    def body(self, question: Question) -> dict[str, Any]:
        """The whole answer at once."""
        if question.prompt is not None:
            choice: dict[str, Any] = {"text": self.message["content"], "logprobs": None}
        else:
            choice = {"message": {**self.message, "content": self._content}, "logprobs": None}
        return {**self._head(question, ""), "choices": [self._choice(choice, self.finish_reason)], "usage": self.usage}

    def chunks(self, question: Question) -> Iterator[dict[str, Any]]:
        """The same in pieces, for a stream."""
        head = self._head(question, ".chunk")
        if question.include_usage:
            head["usage"] = None
        for delta in self._deltas() if question.prompt is None else ():
            yield {**head, "choices": [self._choice({"delta": delta}, None)]}
        if question.prompt is None:
            last: dict[str, Any] = {"delta": {}}
        else:
            last = {"text": self.message["content"], "logprobs": None}
        yield {**head, "choices": [self._choice(last, self.finish_reason)]}
        if question.include_usage:
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

    def _head(self, question: Question, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if question.prompt is None else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": question.model}

    def _choice(self, content: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, **content, "finish_reason": finish_reason}


def call_id(turn: int, own: str) -> str:
    """The id of a call as the program sees it; a model's own ids begin again with every turn."""
    return f"turn{turn}-{own}"


def own_call_id(seen: str) -> str:
    """What `call_id` was made of; anything else stays as it is."""
    turn, dash, own = seen.partition("-")
    return own if dash and turn.startswith("turn") and turn[4:].isdecimal() else seen


def _cut(action: Action, stop: Sequence[str]) -> tuple[str, str]:
    content = action.message["content"] or ""
    raws = [call.raw for call in action.tool_calls if call.arguments is None and call.raw]
    if raws and raws[0] not in content:  # an agent leaves all of them in the content, or none
        content += "".join(raws)
    found = [place for place in (content.find(each) for each in stop) if place >= 0]
    return (content[: min(found)], "stop") if found else (content, action.finish_reason)


def _calls(action: Action, turn: int) -> list[dict[str, Any]]:
    """The calls that could be read; of the others the program is given the text, as of anything that is no call."""
    return [
        {
            "id": call_id(turn, call.id),
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in action.tool_calls
        if call.arguments is not None
    ]
