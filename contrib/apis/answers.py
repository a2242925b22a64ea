"""Compares a final answer with the target: as text, number or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from envs.math.answers import after_thinking

_MAX_ANSWER = 100_000
_NUMBER = re.compile(r"[+-]?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)


def same_answer(answer: str, target: Any) -> bool:
    """Tell whether an answer is the target. White space is ignored; numbers are compared by value, others as JSON.

    Thinking before the answer is ignored; any other text makes it wrong, so that naming many answers earns nothing.

    >>> same_answer("8.0", "8"), same_answer("It is 8", "8"), same_answer('{"b": [2], "a": 1}', {"a": 1, "b": [2]})
    (True, False, True)
    """
    text = after_thinking(answer)[: _MAX_ANSWER + 1].strip()
    right = (target if isinstance(target, str) else json.dumps(target, ensure_ascii=False)).strip()
    if not text or len(text) > _MAX_ANSWER:
        return False
    if text.split() == right.split():
        return True
    number = _number(right)
    if number is not None:
        return _number(text) == number
    return right.startswith(("{", "[")) and _same_json(text, right)


def _number(text: str) -> Decimal | None:
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def _same_json(text: str, right: str) -> bool:
    try:
        return _same(*(json.loads(value, parse_int=Decimal, parse_float=Decimal) for value in (text, right)))
    except (ValueError, ArithmeticError, RecursionError):
        return False


def _same(a: Any, b: Any) -> bool:
    """Equal values of equal types; Python's own comparison takes true for 1."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)
