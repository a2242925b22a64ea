"""An answer's text to a thought, content and calls: the one reader, in a run and behind a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from agents.renderer.dialects import harmony, parse
from agents.renderer.model_json import dump
from forge_env.core.types import ToolCall, ToolSpec

THINK, END_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Answer:
    content: str
    thought: str | None
    """None if the answer has no thought."""
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """How answers of a model are written."""

    dialect: str = "none"
    """Of its calls, see `agents.renderer.dialects`."""
    has_thoughts: bool = True
    """Whether the template knows thoughts; otherwise their marks are text of the answer."""
    opens_thought: bool = False
    """Whether the prompt has begun the thought already."""
    one_call: bool = False
    """Whether an answer has room for one call only."""

    end_thought: ClassVar[str] = END_THINK
    after_thought: ClassVar[str] = "\n\n"
    """What is between the end of a thought and the rest of the answer."""
    close_thought: ClassVar[str] = f"\n{END_THINK}{after_thought}"
    """What the agent writes behind a thought that it ends: its end, and `after_thought`."""
    begin_content: ClassVar[str] = ""
    """What is before the content."""

    def is_in_thought(self, text: str) -> bool:
        """Whether a text begins with a thought, and does not end it."""
        return self.split(text)[1] is None

    def read(self, text: str, *, tools: Sequence[ToolSpec] | None, is_cut: bool) -> Answer:
        """Read an answer. No text raises.

        A thought at the beginning is not content, and a call in it is not a call. A call ends a thought that has no end
        of its own, unless a limit has cut the answer.

        Args:
            tools: what may be called: without tools there are no calls. None if that is not known, as in a record.
        """
        thought, rest = self.split(text)
        if rest is None:  # the thought has no end
            assert thought is not None
            if is_cut:
                return Answer("", thought.strip(), ())
            before, calls = self._calls(thought, tools)
            return Answer("", before.strip(), calls) if calls else Answer("", thought.strip(), ())
        content, calls = self._calls(rest, tools)
        return Answer(content.strip(), None if thought is None else thought.strip(), calls)

    def split(self, text: str) -> tuple[str | None, str | None]:
        """The thought, None without one; and the rest of the answer, None if the thought has no end."""
        if not self.has_thoughts:
            return None, text
        body = text.lstrip()
        if body.startswith(THINK):
            body = body[len(THINK) :]
        elif not self.opens_thought:
            return None, text
        thought, end, rest = body.partition(END_THINK)
        return thought, rest if end else None

    def _calls(self, text: str, tools: Sequence[ToolSpec] | None) -> tuple[str, tuple[ToolCall, ...]]:
        if tools is not None and not tools:
            return self._plain_content(text), ()
        content, calls = parse(text, self.dialect, tools or ())
        if self.one_call and len(calls) > 1:
            error = "The call cannot be read because it is not the only one: write one call a turn."
            calls = (calls[0], *(_refuse(call, error) for call in calls[1:]))
        return content, calls

    def _plain_content(self, text: str) -> str:
        """The content of an answer when nothing may be called."""
        return text


class ChannelForm(AnswerForm):
    """Answers in channels, as of gpt-oss; see `agents.renderer.dialects.harmony`."""

    end_thought, after_thought, close_thought = harmony.END, harmony.ANSWER, harmony.END + harmony.ANSWER
    begin_content = harmony.FINAL

    def read(self, text: str, *, tools: Sequence[ToolSpec] | None, is_cut: bool) -> Answer:
        """See `AnswerForm.read`; but no call ends an analysis, whose text may be a call's header."""
        return super().read(text, tools=tools, is_cut=is_cut or self.is_in_thought(text))

    def split(self, text: str) -> tuple[str | None, str | None]:
        return harmony.split(text)

    def _plain_content(self, text: str) -> str:
        return "\n".join(each.body for each in harmony.messages(text))


def _refuse(call: ToolCall, error: str) -> ToolCall:
    if call.arguments is None:
        return call
    raw = dump({"name": call.name, "arguments": call.arguments})
    return replace(call, arguments=None, raw=raw, error=error)
