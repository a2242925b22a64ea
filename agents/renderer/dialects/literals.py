"""Values as programs write them: ``{'a': [1, None]}``, and with other quotes ``{a:[1,<escape>b<escape>]}``.

The reader takes the literals of Python and JSON alike, since templates mix them (``True`` beside ``null``).
"""

from __future__ import annotations

import re
from typing import Any

from agents.renderer.model_json import MAX_DEPTH, SPACE, dump, shorten
from forge_env.core.json_text import JSON_NUMBER, read_float, read_int

_SPACES = re.compile(rf"[{SPACE}]*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"\w+")
IDENTIFIER = re.compile(r"[^\W\d][\w.-]*")
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|' + r"'''(?:[^\\]|\\.)*?'''" + r"""|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.S
)
_ESCAPE = re.compile(r"\\(\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.S)
_ESCAPES = {"\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MOST_DIGITS = 4300
"""Digits of an integer; Python refuses to convert more."""


class NotRead(ValueError):
    """Why a text is not a value, as a clause."""


def literal(text: str) -> Any:
    """The value of a text that is exactly one literal."""
    value, end = Literals(text).value(0)
    if end < len(text.rstrip(SPACE)):
        raise NotRead(f"it goes on after its end ({shorten(text[end:])})")
    return value


class Literals:
    """Reads values in a text.

    Args:
        quote: the mark around a string; "" for the quotes of Python.
    """

    def __init__(self, text: str, quote: str = "") -> None:
        self.text = text
        self._quote = quote

    def space(self, at: int) -> int:
        return _SPACES.match(self.text, at).end()  # type: ignore[union-attr]  # it matches everywhere

    def value(self, at: int, depth: int = 0) -> tuple[Any, int]:
        at = self.space(at)
        if depth > MAX_DEPTH:
            raise NotRead(f"it is nested more than {MAX_DEPTH} levels deep")
        first = self.text[at : at + 1]
        if first == "{":
            return self.pairs(at + 1, ":", "}", depth)
        if first and first in "[(":
            return self._items(at + 1, "]" if first == "[" else ")", depth)
        if self._at_string(at):
            return self._string(at)
        if match := _NUMBER.match(self.text, at):
            return self._number(match[0]), match.end()
        word = _WORD.match(self.text, at)
        if word and word[0] in _CONSTANTS:
            return _CONSTANTS[word[0]], word.end()
        raise NotRead(f"a value was expected at {self._here(at)}")

    def pairs(self, at: int, sign: str, close: str, depth: int = 0) -> tuple[dict[str, Any], int]:
        """The names and values up to `close`, with `sign` between a name and its value; and the end of `close`."""
        values: dict[str, Any] = {}
        at = self.space(at)
        while not self.text.startswith(close, at):
            if self._at_string(at):
                key, at = self._string(at)
            elif match := IDENTIFIER.match(self.text, at):
                key, at = match[0], match.end()
            else:
                raise NotRead(f"a name was expected at {self._here(at)}")
            at = self._skip(sign, at)
            value, at = self.value(at, depth + 1)
            if key in values:
                raise NotRead(f"the key {shorten(dump(key))} appears twice")
            values[key] = value
            at = self._next(at, close)
        return values, at + len(close)

    def _items(self, at: int, close: str, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        at = self.space(at)
        while not self.text.startswith(close, at):
            value, at = self.value(at, depth + 1)
            values.append(value)
            at = self._next(at, close)
        return values, at + len(close)

    def _next(self, at: int, close: str) -> int:
        """The place after the comma between two values, or of the closing bracket."""
        at = self.space(at)
        return at if self.text.startswith(close, at) else self.space(self._skip(",", at))

    def _skip(self, sign: str, at: int) -> int:
        at = self.space(at)
        if not self.text.startswith(sign, at):
            raise NotRead(f'"{sign}" was expected at {self._here(at)}')
        return at + len(sign)

    def _at_string(self, at: int) -> bool:
        return self.text.startswith(self._quote or ('"', "'"), at)

    def _string(self, at: int) -> tuple[str, int]:
        if self._quote:
            start = at + len(self._quote)
            end = self.text.find(self._quote, start)
            if end < 0:
                raise NotRead(f"a text in it does not end with {self._quote}")
            return self.text[start:end], end + len(self._quote)
        match = _STRING.match(self.text, at)
        if match is None:
            raise NotRead(f"a text in it does not end with {self.text[at]}")
        literal = match[0]
        width = 3 if literal[:3] in ('"""', "'''") else 1
        return _ESCAPE.sub(_unescape, literal[width:-width]), match.end()

    def _number(self, digits: str) -> float | int:
        if any(sign in digits for sign in ".eE"):
            return read_float(digits) if JSON_NUMBER.fullmatch(digits) else float(digits)
        if len(digits) > _MOST_DIGITS:
            raise NotRead("a number in it has thousands of digits")
        return read_int(digits)

    def _here(self, at: int) -> str:
        return f'"{shorten(self.text[at : at + 40])}"' if at < len(self.text) else "its end"


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code in _ESCAPES:
        return _ESCAPES[code]
    if code[0] in "01234567":
        return chr(int(code, 8))
    if len(code) > 1 and int(code[1:], 16) <= 0x10FFFF:
        return chr(int(code[1:], 16))
    return match[0]


def python(value: Any) -> str:
    """A JSON value as Python writes it, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump(key)}: {python(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(python, value)) + "]"
    return (
        {True: "True", False: "False"}[value] if isinstance(value, bool) else "None" if value is None else dump(value)
    )
