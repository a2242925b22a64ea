"""Harmony, the form of gpt-oss: an answer is messages in channels (analysis, commentary, final).

    <|channel|>analysis<|message|>THOUGHT<|end|><|start|>assistant<|channel|>final<|message|>CONTENT
    <|channel|>analysis<|message|>THOUGHT<|end|><|start|>assistant CALL

CALL is `to=functions.NAME<|channel|>commentary json<|message|>{...}`.

A header names a channel and may name a recipient, before or after it: such a message is a call. The text begins behind
`<|start|>assistant`, and is without the token that ends the answer. Text without a header is content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agents.renderer.dialects.calls import Calls, Tools, Written
from agents.renderer.dialects.scan import Scan
from agents.renderer.model_json import SPACE, dump, read_arguments
from forge_env.core.types import ToolCall

END, ANSWER = "<|end|>", "<|start|>assistant"
THOUGHT, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
_MESSAGE = "<|message|>"
_HEADER = " to=functions.{}<|channel|>commentary json<|message|>"
_END = re.compile(re.escape(END))
_ANALYSIS = re.compile(r"<\|channel\|>analysis\b")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """One message of an answer."""

    header: str
    body: str
    is_ended: bool
    """Whether another message may follow."""

    @property
    def recipient(self) -> str:
        """The name of the tool that it calls; "" if it calls none."""
        match = _RECIPIENT.search(self.header)
        return match[1] if match else ""

    @property
    def is_thought(self) -> bool:
        return not self.recipient and _ANALYSIS.search(self.header) is not None


def messages(text: str) -> Iterator[ChannelMessage]:
    """The messages of an answer; one that has no header is content."""
    scan, at = Scan(text, _END), 0
    while at < len(text):
        end, mark = scan.find(END, at), scan.find(_MESSAGE, at)
        has_header = mark >= 0 and not 0 <= end < mark
        header, start = (text[at:mark], mark + len(_MESSAGE)) if has_header else ("", at)
        if _RECIPIENT.search(header):  # marks may be in the strings of its JSON
            _, whole, problem = scan.json(scan.space(start))
            end = end if problem else text.find(END, whole)
            words = "" if problem else text[whole : None if end < 0 else end].strip()
            if words:
                yield ChannelMessage(header, text[start:whole], True)
                header, start = "", whole
        body = text[start : None if end < 0 else end]
        yield ChannelMessage(header, body if header else body.strip(), end >= 0)
        at = len(text) if end < 0 else end + len(END)
        at += len(ANSWER) * text.startswith(ANSWER, at)


def split(text: str) -> tuple[str | None, str | None]:
    """The thoughts of an answer, None if there are none, and the text of the other messages, None if the last thought
    has no end."""
    parts = list(messages(text))
    thoughts = [message.body.strip() for message in parts if message.is_thought]
    others = [f"{each.header}{_MESSAGE * bool(each.header)}{each.body}" for each in parts if not each.is_thought]
    thought = "\n\n".join(thoughts) if thoughts else None
    if parts and parts[-1].is_thought and not parts[-1].is_ended:
        return thought, None
    return thought, f"{END}{ANSWER}".join(others)


class Harmony:
    """The dialect. A message of another channel than the analysis is content, unless it has a recipient."""

    form = "<|start|>assistant to=functions.TOOL<|channel|>commentary json<|message|>{...}"
    marks = ("<|start|>", "<|channel|>", _MESSAGE, "<|constrain|>", END)

    def read(self, text: str, tools: Tools) -> tuple[str, list[ToolCall]]:
        if _MESSAGE not in text:
            return text, []
        calls, content = list[ToolCall](), list[str]()
        for message in messages(text):
            if name := message.recipient:
                arguments, problem = read_arguments(message.body)
                raw = message.body.strip(SPACE) if problem else ""
                calls.append(Written(name, arguments, problem, raw).call(self.form))
            elif not message.is_thought:
                content.append(message.body)
        return "\n".join(filter(None, content)), calls

    def write(self, content: str, calls: Calls) -> str:
        content_parts = (
            [f"{FINAL if not calls else '<|channel|>commentary<|message|>'}{content}"] if content or not calls else []
        )
        call_parts = [
            f"{_HEADER.format(call.name)}{call.raw if call.arguments is None else dump(call.arguments)}"
            for call in calls
        ]
        return f"{END}{ANSWER}".join([*content_parts, *call_parts])
