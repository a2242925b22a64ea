"""Keeps messages and tools from forging turns: a special token that one of them spells out becomes plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agents.renderer.conversation_format import ConversationFormat
from agents.renderer.dialects import begin_of
from agents.renderer.model_json import decode_all, dump
from agents.renderer.reading import END_THINK, THINK
from forge_env.core.types import Message, ToolSpec

_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", THINK, END_THINK)
"""Marks of templates that may be plain text to the tokenizer; messages of users and tools may not contain them."""


class Defuser:
    """Args: stop: ends of an answer that are ordinary text to the tokenizer."""

    def __init__(self, form: ConversationFormat, stop: Sequence[str]) -> None:
        marks = [mark for mark in _MARKS if mark in form.template.source]
        special = sorted({*form.tokens, *marks, *stop}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or "(?!)")
        self._has_thoughts, self._dialect = form.answers.has_thoughts, form.answers.dialect
        self._tools: dict[int, tuple[Sequence[ToolSpec], Sequence[ToolSpec], str]] = {}

    def spelt_by(self, text: str) -> str:
        """The first special token that a text spells out; "" if there is none."""
        found = self._special.search(text)
        return found[0] if found else ""

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        return [self._message(message) for message in messages]

    def tools(self, tools: Sequence[ToolSpec]) -> tuple[Sequence[ToolSpec], str]:
        """The tools, and their text; instances of an environment share one list, which is read once."""
        cached = self._tools.get(id(tools))
        if cached is None or cached[0] is not tools:
            if len(self._tools) >= 64:
                self._tools.clear()
            copies = self._defuse(list(tools))
            cached = self._tools[id(tools)] = (tools, copies, json.dumps(copies))
        return cached[1:]

    def _message(self, message: Message) -> Message:
        if message["role"] != "assistant":
            return {**message, "content": self._defuse(message["content"])}
        if self._has_thoughts:
            message = _with_thought(message)
        copy: Message = self._defuse({key: value for key, value in message.items() if key != "tool_calls"})
        if "tool_calls" in message:
            copy["tool_calls"] = [self._call(call) for call in message["tool_calls"] or ()]
        return copy

    def _call(self, call: Any) -> Any:
        """A call. JSON escapes in the text of its arguments can spell out a token for a template, too.

        The text of a call without its end begins with its mark, which stays.
        """
        function = call.get("function", call) if isinstance(call, Mapping) else None
        text = function.get("arguments") if isinstance(function, Mapping) else None
        if function is None or not isinstance(text, str):
            return self._defuse(call)
        begin = begin_of(self._dialect)
        begin = begin if text.startswith(begin) else ""
        text = text[len(begin) :]
        if "\\" in text:
            arguments, problem = decode_all(text)
            text = text if problem else dump(arguments)
        function = self._defuse(function) | {"arguments": begin + self._defuse(text)}
        return self._defuse({**call, "function": {}}) | {"function": function} if "function" in call else function

    def _defuse(self, value: Any) -> Any:
        if isinstance(value, str):
            text = value if value.isascii() else value.encode("utf-8", "replace").decode()  # a lone surrogate: no token
            return self._special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        if isinstance(value, Mapping):
            return {self._defuse(key): self._defuse(item) for key, item in value.items()}
        return [self._defuse(item) for item in value] if isinstance(value, (list, tuple)) else value


def _with_thought(message: Message) -> Message:
    """A message with its thought as its reasoning, as templates read it, if its content begins with a thought."""
    thought, end, rest = (message.get("content") or "").lstrip().partition(END_THINK)
    if "reasoning_content" in message or not end or not thought.startswith(THINK):
        return message
    return {**message, "reasoning_content": thought.removeprefix(THINK).strip("\n"), "content": rest.lstrip("\n")}
