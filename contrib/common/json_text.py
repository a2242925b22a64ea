"""Reads and writes JSON with numbers that keep their digits, see `forge_env.core.json_text`; and reads texts."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from forge_env.core.json_text import JSON_NUMBER, MARK, read_float, read_int, with_marks, without_marks

_BOMS = (codecs.BOM_UTF8, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|(u[dD][89a-fA-F]\w\w)|.)", re.ASCII | re.DOTALL)
"""An escape in a string, with a group for half of a surrogate pair."""
_TOKEN = re.compile(rf"{_STRING}|{JSON_NUMBER.pattern}", re.ASCII)


def read(text: str) -> Any:
    """Return the value of a JSON text; a byte order mark before it and NUL after it are left out."""
    return json.loads(_bare(text), parse_float=read_float, parse_int=read_int)


def write(value: Any, **options: Any) -> str:
    """Return a value as JSON text, with the options of `json.dumps`.

    >>> write(read("[1.10, 1e400, -0]"))
    '[1.10, 1e400, -0]'
    """
    return without_marks(json.dumps(with_marks(value), **options))


def marked_text(text: str) -> str:
    """Return JSON text, or a line of it, with a marked text in place of every number that no float or int is.

    U+FFFD is in place of half a surrogate pair, which Python writes and other readers refuse.
    """
    return _TOKEN.sub(_mark, text)


def restored(value: Any) -> Any:
    """Return a value with the numbers of its marked texts."""
    if isinstance(value, str):
        return read(value[len(MARK) : -1]) if value.startswith(MARK) else value
    if isinstance(value, Mapping):
        return {key: restored(item) for key, item in value.items()}
    return [restored(item) for item in value] if isinstance(value, list) else value


def is_set(flag: Any) -> bool:
    """Whether a service has set a flag. Some write a number or a text, and "false" is a text that is not empty."""
    return str(flag).lower() in ("true", "1")


def portable(value: Any) -> Any:
    """Return a JSON value that every reader takes: valid Unicode, and None for numbers that are not finite.

    A model may write half of a surrogate pair, which UTF-8 cannot hold; U+FFFD replaces it, as browsers do.
    """
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {portable(str(key)): portable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(item) for item in value]
    return value


def decoded(data: bytes, charset: str = "") -> str:
    """Return the text of a service or a file, by its byte order mark, else by its charset, else by its zero bytes."""
    if data.startswith(_BOMS) or not charset:
        charset = json.detect_encoding(data)
    try:
        text = data.decode(charset, errors="replace")
    except (LookupError, ValueError):
        text = data.decode(errors="replace")
    return _bare(text)


def _bare(text: str) -> str:
    return text.removeprefix("\ufeff").rstrip("\0")


def _mark(match: re.Match[str]) -> str:
    text = match[0]
    if text[0] == '"':
        return _ESCAPE.sub(lambda escape: r"\ufffd" if escape[1] else escape[0], text) if r"\u" in text else text
    is_other = text == "-0" or not text.lstrip("-").isdigit()
    return f'"{MARK}{text}>"' if is_other and json.dumps(read(text)) != text else text
