"""Server-sent events: the stream in which a server answers a call. Source: the WHATWG's HTML standard, section 9.2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

MAX_BYTES = 8 << 20
"""Bytes of one stream."""


class Event(NamedTuple):
    kind: str
    data: str


class TooLong(Exception):
    """The stream is longer than MAX_BYTES."""


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """Yield the events of a stream. Lines end at line feeds only: JSON may hold the other ends of lines."""
    rest, total, kind, data = b"", 0, "", list[str]()
    async for chunk in chunks:
        total += len(chunk)
        if total > MAX_BYTES:
            raise TooLong
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            text = line.rstrip(b"\r").decode(errors="replace")
            if not text:
                if kind or data:
                    yield Event(kind, "\n".join(data))
                kind, data = "", []
                continue
            field, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                kind = value
            elif field == "data":
                data.append(value)
