"""The text of an HTTP response as the result of a tool."""

from __future__ import annotations

import json
import re

from contrib.apis.http.client import ApiResponse
from contrib.common.json_text import read, write
from forge_env.core.types import ToolFailure

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_SPACE = re.compile(rf"({_STRING})|[ \t\r\n]+")
_DETAIL_KEYS = ("detail", "message", "error_description", "error", "errors", "title", "msg")
_MAX_DETAIL = 1000
_TEXT_TYPES = ("xml", "yaml", "javascript", "x-www-form-urlencoded", "csv", "ndjson")


def answer_text(response: ApiResponse) -> str:
    """Return a response as text: compact JSON, an error with its detail, and of binary data the size only.

    A response with a status of 300 or more is a `ToolFailure`, of the kind "http_404" for example.
    """
    kind = f"http_{response.status}"
    if response.status >= 400:
        return ToolFailure(f"Error: {_status(response)}: {_detail(response)}"[:_MAX_DETAIL], kind=kind)
    if response.status >= 300:
        where = f" to {response.location[:200]}" if response.location else ""
        text = f"Error: {_status(response)}: the service redirects{where}, which is not followed."
        return ToolFailure(text, kind=kind)
    if not response.body:
        return f"OK ({_status(response)}, no content)"
    if not _is_text(response):
        size = f"more than {len(response.body)}" if response.truncated else str(len(response.body))
        return f"[{response.content_type}, {size} bytes]"
    if response.truncated:
        return f"{response.text}\n[cut after {len(response.body)} bytes]"
    return _compact(response.text)


def _status(response: ApiResponse) -> str:
    return f"{response.status} {response.reason}".strip()


def _is_text(response: ApiResponse) -> bool:
    kind = response.content_type
    if not kind or kind == "application/octet-stream":
        return b"\0" not in response.body
    return kind.startswith("text/") or "json" in kind or any(name in kind for name in _TEXT_TYPES)


def _detail(response: ApiResponse) -> str:
    if not response.body:
        return "no detail"
    if not _is_text(response):
        return f"[{response.content_type}, {len(response.body)} bytes]"
    try:
        data = read(response.text)
    except (ValueError, RecursionError):
        return " ".join(response.text.split())
    if isinstance(data, dict):
        data = next((data[key] for key in _DETAIL_KEYS if data.get(key)), data)
    return data if isinstance(data, str) else write(data, ensure_ascii=False, separators=(",", ":"))


def _compact(text: str) -> str:
    """Return JSON text without its white space and escapes; any other text as it is."""
    bare = text.removeprefix("\ufeff").rstrip("\0")
    try:
        json.loads(bare, parse_float=len, parse_int=len)
    except (ValueError, RecursionError):
        return text
    return _SPACE.sub(lambda match: _unescape(match[1] or ""), bare)


def _unescape(string: str) -> str:
    """A JSON string with its characters as they are, but half of a surrogate pair, which UTF-8 does not hold."""
    if "\\" not in string:
        return string
    plain = json.dumps(json.loads(string), ensure_ascii=False)
    return plain if plain.isascii() or not re.search("[\ud800-\udfff]", plain) else string
