"""JSON that a model wrote: it may hold half a surrogate pair, which neither UTF-8 nor SQLite can store."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json


def parse_json(line: bytes) -> Any:
    try:
        return from_json(line, cache_strings="keys")
    except ValueError:
        pass  # pydantic_core refuses lone surrogates, which Python's parser accepts
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_lines(data: bytes) -> list[dict[str, Any]]:
    """The objects of JSON lines; other lines are left out, such as the last one of a killed run."""
    objects = []
    for line in data.splitlines():
        try:
            value = parse_json(line)
        except ValueError:
            continue
        objects += [value] if isinstance(value, dict) else []
    return objects


def encodable(text: Any) -> str:
    """A text that UTF-8 and SQLite can store: lone surrogates are written as escapes, other values as JSON."""
    text = text if isinstance(text, str) else json.dumps(text)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
