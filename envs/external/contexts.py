"""Which conversation a request goes on with: the one whose messages it begins with, compared by what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.external.questions import Question
from envs.external.replies import own_call_id
from forge_env.core.types import Message, ToolSpec

Said = tuple[str, str, tuple[tuple[str, str], ...]]
"""Role, text and calls of a message: what a model reads of it."""


def said(message: Mapping[str, Any]) -> Said:
    """What a message says, whatever its form: ids and unknown keys aside, arguments of calls as JSON."""
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
class Context:
    """One conversation that a program has with the model."""

    number: int
    tools: Sequence[ToolSpec] = ()
    known: list[Said] = field(default_factory=list)
    """What both sides have seen, up to and with the last answer."""
    text: str = ""
    """The same of a plain prompt."""


class Contexts:
    """The conversations of one episode, numbered from 0 on."""

    def __init__(self) -> None:
        self._all: list[Context] = []

    def place(self, question: Question) -> tuple[Context, tuple[Message, ...]]:
        """Return the conversation that a request belongs to, and the messages that are new to it.

        That is the one with the most messages that the request begins with, if the tools are the same; a request that
        adds nothing to any begins a new one.
        """
        if question.prompt is not None:
            return self._place_text(question.prompt), ()
        all_said = [said(message) for message in question.messages]
        fitting = [each for each in self._all if _continues(each, all_said, question.tools)]
        if not fitting:
            return self._new(tools=question.tools), _with_own_ids(question.messages)
        context = max(fitting, key=lambda each: (len(each.known), each.number))
        return context, _with_own_ids(question.messages[len(context.known) :])

    def refused(self, context: Context) -> None:
        """Forget a conversation that was to begin with a request that is not answered."""
        if context is self._all[-1] and not context.known and not context.text:
            self._all.pop()

    def answered(self, context: Context, question: Question, reply: Message) -> None:
        """Remember what was answered, as the program was given it."""
        if isinstance(question.prompt, str):
            context.text = question.prompt + reply["content"]
        elif question.prompt is None:
            context.known = [said(message) for message in (*question.messages, reply)]

    def _place_text(self, prompt: str | Sequence[int]) -> Context:
        fitting = [each for each in self._all if each.text and isinstance(prompt, str) and prompt.startswith(each.text)]
        return max(fitting, key=lambda each: len(each.text), default=None) or self._new()

    def _new(self, tools: Sequence[ToolSpec] = ()) -> Context:
        context = Context(number=len(self._all), tools=tools)
        self._all.append(context)
        return context


def _with_own_ids(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Messages as the record has them: a call's id is the one that its turn gave it."""
    return tuple(_with_own_id(message) for message in messages)


def _with_own_id(message: Message) -> Message:
    changed = message.copy()
    if "tool_call_id" in message:
        changed["tool_call_id"] = own_call_id(message["tool_call_id"])
    if "tool_calls" in message:
        changed["tool_calls"] = [{**call, "id": own_call_id(call["id"])} for call in message["tool_calls"]]
    return changed


def _continues(context: Context, all_said: Sequence[Said], tools: Sequence[ToolSpec]) -> bool:
    known = context.known
    return 0 < len(known) < len(all_said) and list(all_said[: len(known)]) == known and context.tools == tools
