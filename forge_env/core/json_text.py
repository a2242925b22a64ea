"""JSON text with numbers that keep the digits that they were written with.

A float is not 1.10, 0.123456789012345678 or 1e400, and an int is not -0. Such a number is read as an `ExactFloat` or
an `ExactInt`: it counts as any other, and is written as it was read. Libraries that know floats only get the
text of `with_marks` in its place.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
MARK = f"<number {secrets.token_hex(8)} "  # nobody can guess it, so no text of a model or a service is taken for one
_MARKED = re.compile(rf'"{MARK}([^">]+)>"')
_PLAIN = frozenset({str, int, float, bool, type(None)})


class Exact:
    """A number that keeps its text."""

    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)  # type: ignore[call-arg]  # of float or int
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> Any:
        return type(self), (self.text,)


class ExactFloat(Exact, float): ...


class ExactInt(Exact, int): ...


def read_float(text: str) -> float:
    """The number of a text with a point or an exponent; 1e400 counts as infinite, and is written as 1e400."""
    number = float(text)
    return number if repr(number) == text and not number.is_integer() else ExactFloat(text)


def read_int(text: str) -> int:
    return ExactInt(text) if text == "-0" else int(text)


class NoArgument(ValueError):
    """JSON that no argument of a tool may be.

    One rule for all tools: a key stands once, and a number is one that a float holds. JSON allows more, and its readers
    disagree: they take the first or the last of two values, and 1e400 for infinity or for an error.
    """


def not_finite(number: float) -> str:
    """The sentence on a number that is NaN or infinite, perhaps only as a float."""
    if isinstance(number, Exact):
        return f"{number.text:.40} is beyond what a float holds"
    return f"{number} is no JSON number"


def with_marks(value: Any) -> Any:
    """Return a value with a marked text in place of every number that keeps its own."""
    kind = type(value)
    if kind in _PLAIN:  # asking an abstract class is slow
        return value
    if kind is dict or isinstance(value, Mapping):
        return {key: with_marks(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_marks(item) for item in value]
    return f"{MARK}{value}>" if isinstance(value, Exact) else value


def without_marks(text: str) -> str:
    return _MARKED.sub(r"\1", text) if MARK in text else text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise NoArgument(f"the key {json.dumps(repeated_key(pairs)):.60} appears twice")
    return result


def repeated_key(pairs: Sequence[tuple[str, Any]]) -> str:
    """The first key that stands twice in an object of JSON, where one does."""
    counts = Counter(name for name, _ in pairs)
    return next(name for name, count in counts.items() if count > 1)


def _no_constant(constant: str) -> Any:
    raise NoArgument(f"{constant} is no JSON number")


def _finite(text: str) -> float:
    number = read_float(text)
    if not math.isfinite(number):
        raise NoArgument(not_finite(number))
    return number


ARGUMENTS: dict[str, Any] = {
    "object_pairs_hook": _unique,
    "parse_constant": _no_constant,
    "parse_float": _finite,
    "parse_int": read_int,
}
"""Options of `json.loads` for the arguments of a tool, see `NoArgument`; numbers keep their digits."""
