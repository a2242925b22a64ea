"""A part of a generated repository: one function, faults that can be put into it, and arguments that call it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

Kind = Literal["numbers", "number", "text", "words", "pairs"]
"""What a function takes and returns: a list of ints, an int, a str, a list of str, a list of [str, int]."""

NUMBER = "{n}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One line of a function as it should be, and as it stands with a mistake in it."""

    right: str
    wrong: str


@dataclass(frozen=True)
class Part:
    """One function of a repository. "{n}" in its texts stands for a number, which differs from task to task."""

    name: str
    takes: Kind
    gives: Kind
    about: str
    """The docstring, which says exactly what the function returns."""
    body: str
    faults: tuple[tuple[str, str], ...]
    """Pairs (text, wrong text): a text that occurs once in the body, and what a mistake makes of it."""
    numbers: range

    @cached_property
    def source(self) -> str:
        """The function without a fault."""
        lines = "\n".join(f"    {line}" for line in self.body.strip("\n").split("\n"))
        return f'def {self.name}({self.takes}):\n    """{self.about}"""\n{lines}\n'

    def fault(self, index: int) -> Fault:
        """The lines of a fault, without indentation."""
        old, new = self.faults[index]
        start = self.body.index(old)
        begin = self.body.rfind("\n", 0, start) + 1
        end = self.body.find("\n", start + len(old))
        line = self.body[begin : end if end >= 0 else None]
        return Fault(right=line.strip(), wrong=line.replace(old, new, 1).strip())

    def text(self, number: int, fault: int | None = None) -> str:
        """Return the source with its number, and with a fault if one is named."""
        source = self.source
        if fault is not None:
            lines = self.fault(fault)
            source = source.replace(lines.right, lines.wrong, 1)
        return source.replace(NUMBER, str(number))

    def pattern(self, fault: int) -> re.Pattern[str]:
        """Match the source with a fault and any number."""
        lines = self.fault(fault)
        text = re.escape(self.source.replace(lines.right, lines.wrong, 1))
        number = re.escape(NUMBER)
        return re.compile(text.replace(number, r"(?P<n>\d+)", 1).replace(number, r"(?P=n)"))


def draw_numbers(rng: random.Random) -> list[int]:
    """Few distinct values, so that repeats and runs occur."""
    return [rng.randint(-3, 12) for _ in range(rng.randint(0, 9))]


def draw_words(rng: random.Random) -> list[str]:
    return rng.choices(["tea", "ink", "rope", "Salt", "wax", "Tin", "corks", "a", "Ink", "lamp"], k=rng.randint(0, 8))


def draw_text(rng: random.Random) -> str:
    return " ".join(draw_words(rng))


DRAW: dict[Kind, Callable[[random.Random], Any]] = {
    "numbers": draw_numbers,
    "words": draw_words,
    "text": draw_text,
}
"""Draws an argument of a kind."""
