"""A part of a generated repository: one function, faults that can be put into it, and arguments that call it.

The parts are in `parts.txt`, which begins with what its lines mean.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

Kind = Literal["numbers", "number", "text", "words", "pairs"]
"""What a function takes and returns: a list of ints, an int, a str, a list of str, a list of [str, int]."""

NUMBER = "{n}"


@dataclass(frozen=True)
class Part:
    """One function of a repository. "{n}" in its texts stands for a number, which differs from task to task."""

    name: str
    takes: Kind
    gives: Kind
    source: str
    """The function without a fault."""
    faults: tuple[tuple[str, str], ...]
    """Pairs (text, wrong text): a text that occurs once in the source, and what a mistake makes of it."""
    numbers: range

    @property
    def about(self) -> str:
        """The docstring, which says exactly what the function returns."""
        return self.source.split('"""')[1]

    def fault(self, index: int) -> tuple[str, str]:
        """The line of a fault as it should be, and as it stands with the mistake in it; without indentation."""
        old, new = self.faults[index]
        line = next(line for line in self.source.split("\n") if old in line)
        return line.strip(), line.replace(old, new, 1).strip()

    def faulty(self, index: int) -> str:
        return self.source.replace(*self.fault(index), 1)

    def text(self, number: int, fault: int | None = None) -> str:
        """Return the source with its number, and with a fault if one is named."""
        return (self.source if fault is None else self.faulty(fault)).replace(NUMBER, str(number))

    def pattern(self, fault: int) -> re.Pattern[str]:
        """Match the source with a fault and any number."""
        text, number = re.escape(self.faulty(fault)), re.escape(NUMBER)
        return re.compile(text.replace(number, r"(?P<n>\d+)", 1).replace(number, r"(?P=n)"))


def _draw_numbers(rng: random.Random) -> list[int]:
    """Few distinct values, so that repeats and runs occur."""
    return [rng.randint(-3, 12) for _ in range(rng.randint(0, 9))]


def _draw_words(rng: random.Random) -> list[str]:
    return rng.choices(["tea", "ink", "rope", "Salt", "wax", "Tin", "corks", "a", "Ink", "lamp"], k=rng.randint(0, 8))


DRAW: dict[Kind, Callable[[random.Random], Any]] = {
    "numbers": _draw_numbers,
    "text": lambda rng: " ".join(_draw_words(rng)),
    "words": _draw_words,
}
"""Draws an argument of a kind; the order decides about the tasks."""


_HEADER = re.compile(r"(\w+): (\w+) -> (\w+), n from (\d+) to (\d+)(?: by (\d+))?")


def _read_part(paragraph: str) -> Part:
    header, *lines = paragraph.strip("\n").split("\n")
    match = _HEADER.fullmatch(header)
    if match is None:
        raise ValueError(f"parts.txt has the header {header!r}, which must match {_HEADER.pattern}")
    name, takes, gives, first, last, step = match.groups()
    source = [f"def {name}({takes}):", *(line for line in lines if line.startswith("    ")), ""]
    faults = [line.split(" => ") for line in lines if not line.startswith("    ")]
    return Part(
        name=name,
        takes=cast(Kind, takes),
        gives=cast(Kind, gives),
        source="\n".join(source),
        faults=tuple((right, wrong) for right, wrong in faults),
        numbers=range(int(first), int(last) + 1, int(step or 1)),
    )


_PARAGRAPHS = Path(__file__).with_name("parts.txt").read_text(encoding="utf-8").split("\n\n")
PARTS: Mapping[str, Part] = {part.name: part for part in map(_read_part, _PARAGRAPHS[1:])}
