"""JSON that a model wrote: read strictly, and with a reason that can be told to the model where it cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 64
"""Levels of nesting at most: what is deeper breaks the code that copies and stores it."""
SPACE = " \t\r\n"
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


class _Refused(ValueError):
    """JSON that Python reads and that we do not: it says two things, or what JSON cannot say."""


def decode(text: str, start: int = 0) -> tuple[Any, int, str]:
    """Read one JSON value. Returns it, where it ends, and what is wrong with it (then the value is None)."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" starting at")
        return None, len(text), f"it is not valid JSON ({what} at character {error.pos - start})"
    except _Refused as error:
        return None, len(text), str(error)
    except RecursionError:
        return None, len(text), _TOO_DEEP
    except ValueError:
        return None, len(text), "a number in it has thousands of digits"
    problem = flaw({"": value})
    return (None if problem else value), end, problem


def decode_all(text: str) -> tuple[Any, str]:
    """Read text that is one JSON value and nothing else. Returns it, and what is wrong with it (then it is None)."""
    stripped = text.strip(SPACE)
    value, end, problem = decode(stripped)
    if not problem and end < len(stripped):
        return None, goes_on(stripped[end:])
    return value, problem


def goes_on(rest: str) -> str:
    return f"it goes on after the end of the JSON ({shorten(rest.strip(SPACE))})"


def dump(value: Any) -> str:
    """Write JSON as models do: letters of every script as they are."""
    text = json.dumps(value, ensure_ascii=False)
    # A lone surrogate is no text that can be sent or tokenised; its escape is, and reads back as the same.
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def flaw(value: Mapping[str, Any]) -> str:
    """Say what keeps a JSON object from being stored and sent; empty when nothing does.

    >>> flaw({"x": float("nan")})
    'nan is no JSON number'
    """
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        children: list[Any] = []
        for item in level:
            if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
                return f"{item} is no JSON number"
            if isinstance(item, (dict, list)):
                children += item.values() if isinstance(item, dict) else item
        if not children:
            return ""
        level = children
    return _TOO_DEEP


def kind(value: Any) -> str:
    """Name the type of a JSON value, for a sentence."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def shorten(text: str) -> str:
    """At most 60 characters on one line: an error is one sentence."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _Refused(f"the key {shorten(json.dumps(twice))} appears twice")
    return found


def _no_constant(constant: str) -> Any:
    raise _Refused(f"{constant} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
