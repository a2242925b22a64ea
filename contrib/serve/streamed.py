"""The beginning of an answer, as far as it stays however the answer goes on: for a reader of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agents.renderer.dialects import harmony
from agents.renderer.dialects.marked import Marked
from agents.renderer.dialects.table import NoCalls, dialect_of
from agents.renderer.model_json import SPACE
from agents.renderer.reading import END_THINK, THINK, AnswerForm, ChannelForm
from forge_env.core.types import ToolSpec


def read_beginning(form: AnswerForm, text: str, *, tools: Sequence[ToolSpec] | None) -> tuple[str, str]:
    """The thought and the content of the beginning of an answer.

    What `AnswerForm.read` returns for the full answer begins with them. Calls are known at the end of an answer only.
    """
    if isinstance(form, ChannelForm):
        return _of_channels(text)
    body = text.lstrip()
    if len(body) < len(THINK) and THINK.startswith(body):
        return "", ""
    thought, rest = form.split(text)
    content = thought[: before_marks(thought, [END_THINK])] if thought is not None and rest is None else rest or ""
    if tools is None or tools:
        content = content[: sure_content(content, form.dialect)]
    return (content.strip(), "") if rest is None else ((thought or "").strip(), content.strip())


def _of_channels(text: str) -> tuple[str, str]:
    *earlier, last = [*harmony.messages(text)] or [harmony.ChannelMessage("", "", False)]
    if not last.is_ended and not last.header:  # a header that is not whole
        last = harmony.ChannelMessage("", "", False)
    body = last.body if last.is_ended else last.body[: before_marks(last.body, [harmony.END])]
    messages = [*earlier, harmony.ChannelMessage(last.header, body, last.is_ended)]
    thought = "\n\n".join(each.body.strip() for each in messages if each.is_thought and each.body)
    contents = [each.body for each in messages if each.header and not each.is_thought and not each.recipient]
    return thought.strip(), "\n".join(filter(None, contents)).strip()


def sure_content(text: str, dialect: str) -> int:
    """The length of the beginning of an answer that is content, however it goes on."""
    reader = dialect_of(dialect)
    if isinstance(reader, Marked):
        return before_marks(text, [reader.open, *(mark.strip() for mark in reader.section if mark)])
    if isinstance(reader, NoCalls):
        return len(text)
    # Without a mark a call begins the answer. A header says what the content of harmony is, see `_of_channels`.
    may_be_call = isinstance(reader, harmony.Harmony) or text.strip(SPACE)[:1] in ("", "{", "[")
    return 0 if may_be_call else before_marks(text, reader.marks)


def before_marks(text: str, marks: Iterable[str]) -> int:
    """The length of a text before its first mark, or before an end that may be the beginning of a mark.

    >>> before_marks("one <tool", ["<tool_call>"]), before_marks("one <b> two", ["<tool_call>"])
    (4, 11)
    """
    first = len(text)
    for mark in marks:
        if (at := text.find(mark, 0, first)) >= 0:
            first = at
        for size in range(min(len(mark) - 1, len(text)), 0, -1):
            if text.endswith(mark[:size]):
                first = min(first, len(text) - size)
                break
    return first
