"""Assigns the requests of a program to conversations, by the messages that a request begins with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contrib.external.requests import ProgramRequest
from contrib.external.responses import model_call_id
from forge_env.core.types import Message, ToolSpec

Content = tuple[str, str, tuple[tuple[str, str], ...]]
"""Role, text and (name, arguments) of the tool calls of a message: what a model reads of it."""


_EMPTY_ANSWER: Content = ("assistant", "", ())


def content_of(message: Mapping[str, Any]) -> Content:
    """Return what is compared of a message: without ids and unknown keys, with arguments of calls as sorted JSON.

    Whitespace at the ends of an answer is left out, which programs trim.
    """
    text = message.get("content") or ""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return (
        message["role"],
        text.strip() if message["role"] == "assistant" else text,
        tuple((call["name"], _arguments(call["arguments"])) for call in calls),
    )


def _arguments(text: str) -> str:
    try:
        arguments = json.loads(text or "{}", parse_int=_number, parse_float=_number)
        return json.dumps(arguments, sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float | int:
    """The number as a program in JavaScript sends it back: 16.0 as 16, and integers with 53 bits."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) <= 2**53 else number


@dataclass(slots=True, kw_only=True)
class ProgramConversation:
    """One conversation that a program has with the model."""

    number: int
    tools: Sequence[ToolSpec] = ()
    agent: str = ""
    """The client's name for the agent, see `Told`."""
    auxiliary: str = ""
    """Why it is not part of the work; "" for a part of it."""
    contents_so_far: list[Content] = field(default_factory=list)
    """The contents of its messages, the last response included."""
    text: str = ""
    """Prompt and response, of a conversation in plain text."""
    ends: list[int] = field(default_factory=list)
    """The length of `contents_so_far` after each answer."""
    asked: Sequence[Content] | None = None
    """The contents of the request that the model is answering, if it is."""

    @property
    def turns(self) -> int:
        """How many of its requests were answered."""
        return len(self.ends)

    @property
    def is_asked(self) -> bool:
        """Whether the model is answering its last request."""
        return self.asked is not None

    @property
    def has_begun(self) -> bool:
        """Whether a request of it has been answered or is being answered."""
        return self.turns > 0 or self.is_asked

    @property
    def history(self) -> Sequence[Content]:
        """The contents of its messages, with those that are being answered."""
        return self.contents_so_far if self.asked is None else self.asked


class ProgramConversations:
    """The conversations of one episode, numbered from 0 on."""

    def __init__(self) -> None:
        self._all: list[ProgramConversation] = []

    def place(self, request: ProgramRequest) -> tuple[ProgramConversation, tuple[Message, ...]]:
        """Return the conversation of a request, and the messages that are new to it.

        A request continues the longest conversation that it begins with and adds to, if the tools are the same and the
        model is not answering another request of it; of several one of the same agent. Any other request begins a new
        conversation. Auxiliary requests have conversations of their own, so they do not interrupt the work. The numbers
        of conversations depend on the order of the requests alone, not on when they are answered.
        """
        contents = [content_of(message) for message in request.messages]
        if request.prompt is not None:
            conversation = self._place_text(request, request.prompt)
        else:
            conversation = self._place_chat(request, contents)
        new = request.messages[_known_of(conversation.contents_so_far, contents) :]
        conversation.asked = contents
        return conversation, tuple(map(_with_model_id, new))

    def before(self, conversation: ProgramConversation) -> Sequence[ProgramConversation]:
        return self._all[: conversation.number]

    def refused(self, conversation: ProgramConversation) -> None:
        """Forget the last request of a conversation, which was refused, or counted and no more."""
        conversation.asked = None

    def answered(self, conversation: ProgramConversation, request: ProgramRequest, reply: Message) -> None:
        question, conversation.asked = conversation.asked or (), None
        if isinstance(request.prompt, str):
            conversation.text = request.prompt + reply["content"]
        elif request.prompt is None:
            conversation.contents_so_far = [*question, content_of(reply)]
        conversation.ends.append(len(conversation.contents_so_far))

    def _place_chat(self, request: ProgramRequest, contents: Sequence[Content]) -> ProgramConversation:
        agent = request.told.agent
        candidates = [item for item in self._idle(request) if _continues(item, contents, request.tools)]
        candidates.sort(key=lambda item: (item.agent == agent, len(item.contents_so_far), item.number))
        return candidates[-1] if candidates else self._new(request)

    def _place_text(self, request: ProgramRequest, prompt: str | Sequence[int]) -> ProgramConversation:
        candidates = [
            item
            for item in self._idle(request)
            if item.text and isinstance(prompt, str) and prompt.startswith(item.text)
        ]
        return max(candidates, key=lambda item: len(item.text), default=None) or self._new(request)

    def _idle(self, request: ProgramRequest) -> list[ProgramConversation]:
        """The conversations that a request may continue, as its client tells. A sub-agent continues its own ones
        only: it may begin with all that its caller knows."""
        facts = request.told
        return [
            item
            for item in self._all
            if bool(item.auxiliary) == bool(facts.auxiliary)
            and not item.is_asked
            and (item.agent == facts.agent or not facts.parent)
        ]

    def _new(self, request: ProgramRequest) -> ProgramConversation:
        facts = request.told
        conversation = ProgramConversation(
            number=len(self._all), tools=request.tools, agent=facts.agent, auxiliary=facts.auxiliary
        )
        self._all.append(conversation)
        return conversation


def _with_model_id(message: Message) -> Message:
    """A message as it is recorded, with the ids of calls that the model gave."""
    copy = message.copy()
    if "tool_call_id" in message:
        copy["tool_call_id"] = model_call_id(message["tool_call_id"])
    if "tool_calls" in message:
        copy["tool_calls"] = [{**call, "id": model_call_id(call["id"])} for call in message["tool_calls"]]
    return copy


def _continues(conversation: ProgramConversation, contents: Sequence[Content], tools: Sequence[ToolSpec]) -> bool:
    return conversation.tools == tools and _known_of(conversation.contents_so_far, contents) > 0


def _known_of(history: Sequence[Content], contents: Sequence[Content]) -> int:
    """How many messages of a request a conversation has; 0 if the request does not begin with all of it and add to it.

    An empty answer is part of its row, whether the program sends it back or drops it.
    """
    at = 0
    for content in history:
        if at < len(contents) and contents[at] == content:
            at += 1
        elif content != _EMPTY_ANSWER:
            return 0
    return at if at < len(contents) else 0
