"""A response to a program, whatever the dialect that it goes out in."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contrib.common.json_text import write
from contrib.external.requests import ProgramRequest
from contrib.external.sampled import TokenLogprob
from forge_env.core.types import Action, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramReply:
    """One response of the model, as the program receives it."""

    id: str
    message: Message
    finish_reason: str
    """"stop", "length" or "tool_calls"."""
    usage: Mapping[str, int]
    stop_text: str = ""
    """The stop text that ended it, if one did."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the sampled tokens, where the program asked for them."""
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(
        cls, action: Action, request: ProgramRequest, logprobs: Sequence[TokenLogprob] = (), *, turn: int
    ) -> ProgramReply:
        """Make a response of an action: cut at the first stop text, with only those calls that could be parsed."""
        content, finish, stop_text = _cut(action, request.stop)
        message: Message = {"role": "assistant", "content": content}
        if reasoning := action.message.get("reasoning_content"):
            message["reasoning_content"] = reasoning
        if calls := _calls(action, turn):
            message["tool_calls"] = calls
        counts = action.usage or {}
        usage = {name: int(counts.get(name, 0)) for name in ("prompt_tokens", "completion_tokens")}
        return cls(
            id=f"turn-{turn}",
            message=message,
            finish_reason="tool_calls" if calls and finish == "stop" else finish,
            usage={**usage, "total_tokens": sum(usage.values())},
            stop_text=stop_text,
            logprobs=tuple(logprobs),
        )

    @classmethod
    def of_count(cls, tokens: int) -> ProgramReply:
        """Make a response that has the number of tokens of the prompt alone."""
        usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
        return cls(id="count", message={"role": "assistant", "content": ""}, finish_reason="stop", usage=usage)


def call_id(turn: int, model_id: str) -> str:
    """Return the id of a call as the program sees it; the ids that a model gives start anew in every turn."""
    return f"turn{turn}-{model_id}"


def model_call_id(id_: str) -> str:
    """Return the id that the model gave, out of one of `call_id`; any other text stays as it is."""
    turn, dash, model_id = id_.partition("-")
    return model_id if dash and turn.startswith("turn") and turn[4:].isdecimal() else id_


def _cut(action: Action, stop: Sequence[str]) -> tuple[str, str, str]:
    content = action.message["content"] or ""
    raws = [call.raw for call in action.tool_calls if call.arguments is None and call.raw]
    if raws and raws[0] not in content:  # an agent leaves the text of all calls in the content, or of none
        content += "".join(raws)
    places = [(content.find(text), text) for text in stop if text in content]
    if not places:
        return content, action.finish_reason, ""
    position, text = min(places, key=lambda place: place[0])
    return content[:position], "stop", text


def _calls(action: Action, turn: int) -> list[dict[str, Any]]:
    """Return the calls that could be parsed; the text of the others is part of the content."""
    return [
        {
            "id": call_id(turn, call.id),
            "type": "function",
            "function": {"name": call.name, "arguments": write(call.arguments)},
        }
        for call in action.tool_calls
        if call.arguments is not None
    ]
