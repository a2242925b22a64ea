"""Dialects: a form of calls with its marks, and the one way to read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from agents.renderer.dialects.bodies import Body
from agents.renderer.dialects.calls import Calls, Tools, Written
from agents.renderer.dialects.scan import Scan
from agents.renderer.model_json import SPACE, shorten
from forge_env.core.types import ToolCall

_NO_MARK = re.compile("(?!)")


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A dialect with a mark before its calls. All other text is content."""

    body: Body
    open: str
    close: str = ""
    """"" if nothing follows a call but the next one, or the end."""
    section: tuple[str, str] = ("", "")
    """Marks around all calls of a turn. A reader does without them."""
    pad: str = ""
    """White space between a mark and the call."""
    between: str = "\n"
    """What a writer puts between two calls."""

    @cached_property
    def form(self) -> str:
        start, end = self.section
        return " ".join(f"{start}{self.open}{self.body.form}{self.close}{end}".split())

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(mark.strip() for mark in (*self.section, self.open, self.close) if mark)

    @cached_property
    def _mark(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(mark) for mark in (self.open, self.close) if mark))

    @cached_property
    def _closing(self) -> re.Pattern[str]:
        return re.compile(rf"[{SPACE}]*{re.escape(self.close)}")

    @cached_property
    def _section(self) -> re.Pattern[str]:
        marks = [re.escape(mark.strip()) for mark in self.section if mark]
        return re.compile("|".join(marks)) if marks else _NO_MARK

    def read(self, text: str, tools: Tools) -> tuple[str, list[ToolCall]]:
        scan, at = Scan(text, self._mark), 0
        calls: list[ToolCall] = []
        content: list[str] = []
        while (start := text.find(self.open, at)) >= 0:
            content.append(text[at:start])
            block, at = self._block(scan, start + len(self.open), tools)
            calls += [one.call(self.form) for one in block]
        rest = text[at:]
        if not calls:
            if not (mark := self._section.search(text)):
                return text, []
            raw = text[mark.end() :].strip(SPACE)
            calls = [Written(problem="it holds no call", raw=raw).call(self.form)]
            rest = text[: mark.start()]
        return self._section.sub("", "".join([*content, rest])).strip(), calls

    def _block(self, scan: Scan, start: int, tools: Tools) -> tuple[list[Written], int]:
        """Read one block; returns its calls and its end.

        The raw text of a call without its end begins with its mark.
        """
        begin = start - len(self.open)
        start = scan.space(start)
        calls, end, problem, name = self.body.read(scan, start, tools)
        after = self._closing.match(scan.text, end)
        if after and not problem:  # the end mark may be inside a JSON string, so the call is read first
            return calls, after.end() if self.close else end
        mark = self._mark.search(scan.text, start if problem else end)
        if mark is None or mark[0] == self.open:
            stop = resume = mark.start() if mark else len(scan.text)
            problem = f"it does not end with {self.close}" if self.close else problem
            start = begin if self.close else start
        else:
            stop, resume = mark.span()
        problem = problem or f"it goes on after its end ({shorten(scan.text[end:stop].strip(SPACE))})"
        return [Written(name, None, problem, scan.text[start:stop].strip(SPACE))], resume

    def write(self, content: str, calls: Calls) -> str:
        if not calls:
            return content
        groups = [calls] if self.body.is_list else [(call,) for call in calls]
        blocks = [self._write_block(group) for group in groups]
        start, end = self.section
        block = f"{start}{self.between.join(blocks)}{end}"
        return f"{content}\n{block}" if content else block

    def _write_block(self, calls: Calls) -> str:
        """A block of calls. A call without its end is written as it was."""
        if self.close and calls[0].arguments is None and calls[0].raw.startswith(self.open):
            return calls[0].raw
        return f"{self.open}{self.pad}{self.body.write(calls)}{self.pad}{self.close}"


@dataclass(frozen=True, kw_only=True)
class Bare:
    """A dialect without a mark: its calls begin the answer. Text after them is content."""

    body: Body
    looks: Callable[[str, Tools], bool]
    """Whether a text that begins without white space is one of calls."""
    marks: tuple[str, ...] = ()

    @property
    def form(self) -> str:
        return self.body.form

    def read(self, text: str, tools: Tools) -> tuple[str, list[ToolCall]]:
        inner_text = text.strip(SPACE)
        if not self.looks(inner_text, tools):
            return text, []
        calls, end, problem, name = self.body.read(Scan(inner_text, _NO_MARK), 0, tools)
        if problem:
            return "", [Written(name, None, problem, inner_text).call(self.form)]
        return inner_text[end:].strip(), [one.call(self.form) for one in calls]

    def write(self, content: str, calls: Calls) -> str:
        if not calls:
            return content
        block = self.body.write(calls)
        return f"{block}\n{content}" if content else block
