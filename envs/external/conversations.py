"""Assigns the requests of a program to conversations, by the messages that a request begins with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.external.requests import ProgramRequest
from envs.external.responses import model_call_id
from forge_env.core.types import Message, ToolSpec

Content = tuple[str, str, tuple[tuple[str, str], ...]]
"""Role, text and (name, arguments) of the tool calls of a message: what a model reads of it."""


def content_of(message: Mapping[str, Any]) -> Content:
    """Return what is compared of a message: without ids and unknown keys, with arguments of calls as sorted JSON."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return (
        message["role"],
        message.get("content") or "",
        tuple((call["name"], _arguments(call["arguments"])) for call in calls),
    )


def _arguments(text: Any) -> str:
    try:
        return json.dumps(json.loads(text) if isinstance(text, str) else text, sort_keys=True)
    except (ValueError, RecursionError):
        return str(text)


@dataclass(slots=True, kw_only=True)
class ProgramConversation:
    """One conversation that a program has with the model."""

    number: int
    tools: Sequence[ToolSpec] = ()
    known: list[Content] = field(default_factory=list)
    """The contents of its messages, the last response included."""
    text: str = ""
    """Prompt and response, of a conversation in plain text."""


class ProgramConversations:
    """The conversations of one episode, numbered from 0 on."""

    def __init__(self) -> None:
        self._all: list[ProgramConversation] = []

    def place(self, request: ProgramRequest) -> tuple[ProgramConversation, tuple[Message, ...]]:
        """Return the conversation of a request, and the messages that are new to it.

        A request continues the longest conversation that it begins with and adds to, if the tools are the same. Any
        other request begins a new conversation.
        """
        if request.prompt is not None:
            return self._place_text(request.prompt), ()
        contents = [content_of(message) for message in request.messages]
        candidates = [item for item in self._all if _continues(item, contents, request.tools)]
        if not candidates:
            return self._new(tools=request.tools), _with_model_ids(request.messages)
        conversation = max(candidates, key=lambda item: (len(item.known), item.number))
        return conversation, _with_model_ids(request.messages[len(conversation.known) :])

    def refused(self, conversation: ProgramConversation) -> None:
        """Remove a conversation that was begun by a request that is refused."""
        if conversation is self._all[-1] and not conversation.known and not conversation.text:
            self._all.pop()

    def answered(self, conversation: ProgramConversation, request: ProgramRequest, reply: Message) -> None:
        """Add a response, as the program receives it."""
        if isinstance(request.prompt, str):
            conversation.text = request.prompt + reply["content"]
        elif request.prompt is None:
            conversation.known = [content_of(message) for message in (*request.messages, reply)]

    def _place_text(self, prompt: str | Sequence[int]) -> ProgramConversation:
        candidates = [
            item for item in self._all if item.text and isinstance(prompt, str) and prompt.startswith(item.text)
        ]
        return max(candidates, key=lambda item: len(item.text), default=None) or self._new()

    def _new(self, tools: Sequence[ToolSpec] = ()) -> ProgramConversation:
        conversation = ProgramConversation(number=len(self._all), tools=tools)
        self._all.append(conversation)
        return conversation


def _with_model_ids(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages as they are recorded, with the ids of calls that the model gave."""
    return tuple(_with_model_id(message) for message in messages)


def _with_model_id(message: Message) -> Message:
    changed = message.copy()
    if "tool_call_id" in message:
        changed["tool_call_id"] = model_call_id(message["tool_call_id"])
    if "tool_calls" in message:
        changed["tool_calls"] = [{**call, "id": model_call_id(call["id"])} for call in message["tool_calls"]]
    return changed


def _continues(conversation: ProgramConversation, contents: Sequence[Content], tools: Sequence[ToolSpec]) -> bool:
    known = conversation.known
    return 0 < len(known) < len(contents) and list(contents[: len(known)]) == known and conversation.tools == tools
