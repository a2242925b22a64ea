"""Strict reading of JSON that a model wrote. An error is a sentence that the model can read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from forge_env.core.json_text import ARGUMENTS, NoArgument, not_finite, with_marks, without_marks

MAX_DEPTH = 64
"""Maximum nesting depth: deeper values break the code that copies and stores them."""
_TEXTS_IN_TEXTS = 3
"""Arguments may be text within text at most this many times: a model writes text, and a server writes it as text
again."""
SPACE = " \t\r\n"
_FLAWLESS = frozenset({str, int, bool, type(None)})
"""Types of values that JSON can always hold."""
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def decode(text: str, start: int = 0) -> tuple[Any, int, str]:
    """Read one JSON value. Returns the value, its end, and the problem if there is one (the value is then None)."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" starting at")
        return None, len(text), f"it is not valid JSON ({what} at character {error.pos - start})"
    except NoArgument as error:
        return None, len(text), str(error)
    except RecursionError:
        return None, len(text), _TOO_DEEP
    except ValueError:
        return None, len(text), "a number in it has thousands of digits"
    problem = flaw({"": value})
    return (None if problem else value), end, problem


def decode_all(text: str) -> tuple[Any, str]:
    """Read text that is exactly one JSON value. Returns the value, and the problem if there is one (the value is then
    None)."""
    inner_text = text.strip(SPACE)
    value, end, problem = decode(inner_text)
    if not problem and end < len(inner_text):
        return None, goes_on(inner_text[end:])
    return value, problem


def read_arguments(value: Any) -> tuple[dict[str, Any] | None, str]:
    """Read the arguments of a call, for all parsers and agents alike. Returns them, or None and the problem.

    Missing, null and empty arguments are {}. JSON text of an object is the object, even if it was written as JSON
    twice.

    >>> read_arguments('{"x": 1}'), read_arguments(None), read_arguments("[1]")
    (({'x': 1}, ''), ({}, ''), (None, 'they are a list and not a JSON object'))
    """
    for _ in range(_TEXTS_IN_TEXTS):
        if not isinstance(value, str):
            break
        value, problem = decode_all(value) if value.strip(SPACE) else (None, "")
        if problem:
            return None, problem
    if not value and isinstance(value, (str, list, dict, Mapping, type(None))):
        return {}, ""
    if not isinstance(value, (dict, Mapping)):  # dict first: asking an abstract class is slow
        return None, f"they are {kind(value)} and not a JSON object"
    problem = flaw(value)
    return (None, problem) if problem else (dict(value), "")


def arguments_of(
    call: Mapping[str, Any], keys: Sequence[str] = ("arguments", "parameters")
) -> tuple[dict[str, Any] | None, str]:
    """Read the arguments of a call under the first of `keys` that holds some, like `read_arguments`.

    An object under another key is a problem: the arguments are there, and must not count as missing.
    """
    present = [key for key in keys if key in call]
    key = next((key for key in present if call[key] not in (None, "", {}, [])), "")
    if not key:
        stray = next((name for name, value in call.items() if name not in keys and value and type(value) is dict), "")
        return (None, f'its "{keys[0]}" are missing, and "{shorten(stray)}" is not their name') if stray else ({}, "")
    arguments, problem = read_arguments(call[key])
    return arguments, f'its "{key}" {problem.removeprefix("they ")}' if problem.startswith("they ") else problem


def goes_on(rest: str) -> str:
    return f"it goes on after the end of the JSON ({shorten(rest.strip(SPACE))})"


def dump(value: Any) -> str:
    """Write JSON as models do: letters of all scripts unescaped, numbers with the digits that were read."""
    text = without_marks(_ENCODER.encode(with_marks(value)))
    if text.isascii():
        return text
    # A lone surrogate cannot be sent or tokenised; its escape can, and decodes to the same character.
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def flaw(value: Mapping[str, Any]) -> str:
    """The reason why a JSON object cannot be stored and sent; "" if it can.

    >>> flaw({"x": float("nan")})
    'nan is no JSON number'
    """
    if {*map(type, value.values())} <= _FLAWLESS:
        return ""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        children: list[Any] = []
        for item in level:
            if isinstance(item, float) and not math.isfinite(item):
                return not_finite(item)
            if isinstance(item, (dict, list)):
                children += item.values() if isinstance(item, dict) else item
        if not children:
            return ""
        level = children
    return _TOO_DEEP


def kind(value: Any) -> str:
    """The type of a JSON value, in words."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


_ENCODER = json.JSONEncoder(ensure_ascii=False)
_DECODER = json.JSONDecoder(**ARGUMENTS)
