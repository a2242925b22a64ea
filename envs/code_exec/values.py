"""Values from a sandbox: written there as JSON, parsed here, and compared with the accepted ones."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from forge_env.utils.targets import parse_python

ENCODER = """
def _plain(value):
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_plain(item) for item in list.__iter__(value)]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item) for item in tuple.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(item)] for key, item in dict.items(value)]}
    if type(value) in (set, frozenset):
        return {type(value).__name__: sorted([_plain(item) for item in value], key=repr)}
    if type(value) is bytes:
        return {"bytes": value.hex()}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    raise TypeError("a value of type " + type(value).__name__ + " is no plain data")
"""
"""Source that runs in the sandbox. Counter, defaultdict and named tuples count as the dict or tuple that they are.

An answer may replace it, but can then only return another value, which is compared like any other.
"""

_READERS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda items: tuple(map(_value, items)),
    "dict": lambda pairs: {_value(key): _value(item) for key, item in pairs},
    "set": lambda items: set(map(_value, items)),
    "frozenset": lambda items: frozenset(map(_value, items)),
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*parts),
}

_NO_VALUE = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)
"""Errors of parsing values in another format, since foreign code may write anything."""


def decode(text: str | None) -> Any:
    """Parse a value that `_plain` wrote, or plain JSON."""
    try:
        return _value(json.loads(text or ""))
    except _NO_VALUE as error:
        raise ValueError("no value that the encoder writes") from error


def _value(code: Any) -> Any:
    if isinstance(code, list):
        return [_value(item) for item in code]
    if isinstance(code, dict):
        [(kind, content)] = code.items()
        return _READERS[kind](content)
    return code


def accepts(test: Mapping[str, Any], value: Any) -> bool:
    """Whether a decoded value passes a call test.

    `compare` is one of: "exact", equal with the same types at all levels; "equal", Python's == as in an assert; "json",
    the same with tuples as lists, for expected values from JSON; "truth", whether the value is true; "tuple" and
    "set", whether the tuple or set of the value is equal; "close", within `rel_tol` and `abs_tol`.
    """
    try:
        how = test.get("compare", "exact")
        results = [ast.literal_eval(parse_python(text.lstrip(" \t"), mode="eval")) for text in test["accepted"]]
        if how == "truth":
            return bool(value) is results[0]
        if how == "close":
            return _is_close(value, results[0], test)
        if how == "json":
            value = _lists(value)
        return any(same(value, other) if how == "exact" else value == other for other in results)
    except RecursionError:  # nested more deeply than the accepted value
        return False


def same(value: Any, expected: Any) -> bool:
    """Whether two plain values are equal and of exactly the same types.

    >>> same([1, (2.0,)], [1, (2.0,)]), same([1], [1.0]), same(True, 1)
    (True, False, False)
    """
    try:
        return _same(value, expected)
    except RecursionError:  # nested more deeply than the expected value
        return False


def _same(value: Any, expected: Any) -> bool:
    if type(value) is not type(expected):
        return False
    if isinstance(value, (list, tuple)):
        return len(value) == len(expected) and all(map(_same, value, expected))
    if isinstance(value, (dict, set, frozenset)):
        # The names of types distinguish equal keys of different types, 1 and True.
        keys_of_value, keys_of_expected = (
            {(type(key).__name__, key): key for key in keys} for keys in (value, expected)
        )
        if keys_of_value.keys() != keys_of_expected.keys():
            return False
        return not isinstance(value, dict) or all(_same(value[key], expected[key]) for key in expected)
    return bool(value == expected)


def _is_close(value: Any, expected: Any, test: Mapping[str, Any]) -> bool:
    if type(value) not in (int, float):
        return False
    try:
        return math.isclose(value, expected, rel_tol=test.get("rel_tol", 0.0), abs_tol=test.get("abs_tol", 0.0))
    except OverflowError:
        return False


def _lists(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return value
