"""Values of user code as plain JSON data and as text: the same in each process, or one sentence about why not."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections import deque
from collections.abc import Mapping, Sequence, Set, ValuesView
from enum import Enum
from typing import Any

from forge_env.core.errors import EnvError

ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}\b")
"""An address in memory, as the usual repr() of an object shows it."""


def result_text(value: Any, where: str) -> str:
    """Return a result as the text that a model reads: a text as it is, data as JSON, other values by their own str().

    Args:
        where: begins the message of an error, such as "the tool look".
    """
    try:
        value = plain(value)
    except (ValueError, RecursionError) as error:
        reason = "something nested too deeply, or in itself" if isinstance(error, RecursionError) else str(error)
        raise EnvError(f"{where} returned {reason}: return a text, a number, a list or a dict") from None
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """Return a value as text, numbers, booleans, None, lists and dicts with text keys. Sets are sorted."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if type(value) in (list, tuple):
        return [plain(item) for item in value]
    if type(value) is dict:
        return _of_mapping(value)
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(value))
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, type):
        raise ValueError(f"the class {value.__name__}")
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _of_mapping(value)
    if hasattr(value, "tolist"):  # arrays and scalars of numpy and the like
        return plain(value.tolist())
    if isinstance(value, Set):
        return sorted(map(plain, value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, (Sequence, ValuesView, deque)):
        return [plain(item) for item in value]
    return _own_text(value)


def _of_bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    return f"[{len(value)} bytes]" if "\0" in text else text


def _of_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    pairs = [(key if type(key) is str else _key(key), plain(item)) for key, item in value.items()]
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a dict with two keys that have the same text")
    return mapping


def _key(key: Any) -> str:
    key = plain(key)
    return key if isinstance(key, str) else json.dumps(key, ensure_ascii=False, separators=(",", ":"))


def _own_text(value: Any) -> str:
    kind = type(value)
    name = f"a {kind.__name__}"
    if hasattr(value, "__next__") or hasattr(value, "__anext__") or hasattr(value, "__await__"):
        raise ValueError(f"{name}, which is not run yet")
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        raise ValueError(f"{name}, which has no text of its own")
    text = str(value)
    if ADDRESS.search(text):
        raise ValueError(f"{name} with an address in memory as its text")
    return text
