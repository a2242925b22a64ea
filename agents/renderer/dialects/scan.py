"""A text that is read from left to right in time proportional to its length, whatever it holds."""

from __future__ import annotations

import re
from typing import Any

from agents.renderer.model_json import SPACE, decode

_SPACES = re.compile(rf"[{SPACE}]*")


class Scan:
    """A text, with the places of its marks.

    Args:
        marks: those that open and close a call; JSON ends before one, unless it is inside a JSON string.
    """

    def __init__(self, text: str, marks: re.Pattern[str]) -> None:
        self.text = text
        self.marks = marks
        self._places: dict[str, tuple[int, int]] = {}

    def space(self, at: int) -> int:
        """The end of the white space at a place."""
        return _SPACES.match(self.text, at).end()  # type: ignore[union-attr]  # it matches everywhere

    def skip(self, word: str, at: int) -> int:
        """The end of a word at a place, with the white space around both; -1 if another text is there."""
        at = self.space(at)
        word = word.strip(SPACE)
        return self.space(at + len(word)) if self.text.startswith(word, at) else -1

    def find(self, word: str, at: int) -> int:
        """Like `str.find`; the last answer for a word is remembered, since many calls may look for one far away."""
        start, place = self._places.get(word, (0, -2))
        if place == -2 or at < start or 0 <= place < at:
            place = self.text.find(word, at)
            self._places[word] = (at, place)
        return place

    def json(self, start: int) -> tuple[Any, int, str]:
        """`decode` on as little text as possible: a JSON error costs time in proportion to the length of the text.

        JSON ends before a mark, unless the mark is inside a JSON string; only then is more text passed.
        """
        size = 0
        while True:
            mark = self.marks.search(self.text, start + size)
            end = mark.start() if mark else len(self.text)
            value, length, problem = decode(self.text[start:end])
            if mark is None or "Unterminated string" not in problem:
                return value, start + length, problem
            size = max(2 * (end - start), 1)
