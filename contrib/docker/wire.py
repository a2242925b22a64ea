"""The protocol between host and container: frames of a number, a JSON header and raw bytes.

Descriptors cannot be passed through the attach socket of an engine, so everything is copied. The host reads a frame of
a container only up to a cap, and believes nothing of it but its types. Standard library only: both sides import this.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

from forge_env.core.sandbox import Call, Capabilities, ExecRequest, ExecResult, ExecStatus, Limits

PREFIX = struct.Struct("<III")
"""Number of the request, bytes of the header, bytes of the body."""
MAX_HEADER_BYTES = 64 * 2**10
_MAX_VALUE_BYTES = 64 * 2**10
_MAX_ERROR_CHARS = 4000
_TEXTS = ("stdout", "stderr", "value")

_CHECKS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: type(value) is bool,
    "int": lambda value: type(value) is int and abs(value) < 2**63,
    "int | None": lambda value: value is None or (type(value) is int and abs(value) < 2**63),
    "float": lambda value: type(value) is float and math.isfinite(value) and value >= 0,
    "str": lambda value: type(value) is str and len(value) <= _MAX_ERROR_CHARS,
    "ExecStatus": lambda value: type(value) is str and value in set(ExecStatus),
    "tuple[str, ...]": lambda value: type(value) is list and all(type(item) is str for item in value),
}


class BrokenFrame(ValueError):
    """The other side violated the protocol."""


def frame(number: int, header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of one frame. Raises TypeError, ValueError for a header that is not plain JSON."""
    content = json.dumps(header).encode()
    return PREFIX.pack(number, len(content), len(body)) + content + body


def parse_header(data: bytes) -> dict[str, Any]:
    """Raises BrokenFrame."""
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BrokenFrame(f"a header is no JSON: {type(error).__name__}") from None
    if type(header) is not dict:
        raise BrokenFrame("a header is no JSON object")
    return header


def request_message(request: ExecRequest) -> tuple[dict[str, Any], bytes]:
    """Return the header, with the sizes of the files, and the body, which is their contents."""
    files = request.contents()
    header = asdict(replace(request, files={}))
    sizes = [[path, len(data)] for path, data in files.items()]
    return {"do": "run", **header, "files": sizes}, b"".join(files.values())


def request_of(message: dict[str, Any], body: bytes) -> ExecRequest:
    files: dict[str, bytes | str] = {}
    start = 0
    for path, size in message["files"]:
        files[path] = body[start : start + size]
        start += size
    return ExecRequest(
        code=message["code"],
        setup=message["setup"],
        stdin=message["stdin"],
        call=message["call"] and Call(**message["call"]),
        limits=Limits(**message["limits"]),
        files=files,
    )


def max_result_bytes(limits: Limits) -> int:
    """Return the largest size of an honest result, in bytes: an undecodable byte becomes a three-byte character."""
    return 2 * 3 * (limits.output_bytes + 4) + _MAX_VALUE_BYTES


def result_message(result: ExecResult) -> tuple[dict[str, Any], bytes]:
    header = asdict(result)
    texts = [header.pop(name) for name in _TEXTS]
    header["error"] = header["error"][:_MAX_ERROR_CHARS]
    parts = [None if text is None else text.encode("utf-8", "replace") for text in texts]
    header["sizes"] = [None if part is None else len(part) for part in parts]
    return header, b"".join(part for part in parts if part is not None)


def result_of(header: dict[str, Any], body: bytes) -> ExecResult:
    """Return a container's report of an execution. Raises BrokenFrame for malformed values."""
    values = _check(header, ExecResult, leave_out=_TEXTS) | _texts(header.get("sizes"), body)
    return ExecResult(**values | {"status": ExecStatus(values["status"])})


def capabilities_of(header: Any) -> Capabilities:
    """Raises BrokenFrame."""
    if type(header) is not dict:
        raise BrokenFrame("the capabilities are no JSON object")
    values = _check(header, Capabilities, leave_out=())
    lists = {name: tuple(value) for name, value in values.items() if type(value) is list}
    return Capabilities(**values | lists)


def _check(header: dict[str, Any], kind: type, *, leave_out: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in leave_out:
            continue
        value = header.get(field.name)
        if not _CHECKS[str(field.type)](value):
            raise BrokenFrame(f"{field.name!r} is no {field.type}")
        values[field.name] = value
    return values


def _texts(sizes: Any, body: bytes) -> dict[str, Any]:
    if type(sizes) is not list or len(sizes) != len(_TEXTS) or None in sizes[:2]:
        raise BrokenFrame("the sizes of the texts are missing")
    if not all(size is None or (type(size) is int and size >= 0) for size in sizes):
        raise BrokenFrame("the sizes of the texts are no sizes")
    if sum(size or 0 for size in sizes) != len(body):
        raise BrokenFrame("the sizes of the texts do not add up")
    texts: dict[str, Any] = {}
    start = 0
    for name, size in zip(_TEXTS, sizes, strict=True):
        texts[name] = None if size is None else body[start : start + size].decode("utf-8", "replace")
        start += size or 0
    return texts
