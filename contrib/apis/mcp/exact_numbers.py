"""Takes numbers through the `mcp` library with the digits that they were written with; see `forge_env.core.json_text`.

The library reads and writes floats. So what comes in has a marked text in place of such a number before the library
reads it, and marked texts go out as numbers. The library refuses half of a surrogate pair, so U+FFFD is in its place.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator
from typing import Any

from contrib.common.json_text import decoded, marked_text
from forge_env.core.json_text import without_marks

ENCODING = "json_lines_with_marked_numbers"
"""The text encoding of a connection over standard input and output: UTF-8."""
_EVENT_DATA = re.compile(r"""(?:^|(?<=[\r\n]))data: *[]{}["\d-][^\r\n]*""")  # an address begins with something else


class _LineDecoder(codecs.IncrementalDecoder):
    """Gives whole lines, since a number or a character may be cut anywhere else."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._rest = bytearray()

    def decode(self, data: Any, final: bool = False) -> str:
        self._rest += data
        end = len(self._rest) if final else self._rest.rfind(b"\n", len(self._rest) - len(data)) + 1
        lines = bytes(self._rest[:end])
        del self._rest[:end]
        # Line by line: a server may write other lines between its messages, with half a pair of quotes in one.
        return "\n".join(map(marked_text, decoded(lines).split("\n")))

    def reset(self) -> None:
        self._rest.clear()


def _encode(text: str, errors: str = "strict") -> tuple[bytes, int]:
    return without_marks(text).encode("utf-8", errors), len(text)


def _find(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    return codecs.CodecInfo(_encode, codecs.lookup("utf-8").decode, incrementaldecoder=_LineDecoder, name=ENCODING)


codecs.register(_find)


async def before_request(request: Any) -> None:
    """Hook of an HTTP client: send marked texts as numbers."""
    from httpx2 import ByteStream

    if isinstance(request.stream, ByteStream) and (content := without_marks(request.content.decode()).encode()):
        request.stream, request.headers["content-length"] = ByteStream(content), str(len(content))


async def after_response(response: Any) -> None:
    """Hook of an HTTP client: give marked texts in place of numbers."""
    chunks, kind = response.aiter_bytes, response.headers.get("content-type", "")
    are_events = "event-stream" in kind
    if not are_events and "json" not in kind:
        return

    async def marked_chunks(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for chunk in chunks():
            rest += chunk
            end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1 if are_events else 0
            if end:
                lines = rest[: len(rest) - len(chunk) + end].decode("utf-8-sig", "replace")
                del rest[: len(rest) - len(chunk) + end]
                yield _EVENT_DATA.sub(lambda match: marked_text(match[0]), lines).encode()
        if rest:
            yield marked_text(decoded(bytes(rest), response.charset_encoding or "")).encode("utf-8", "replace")

    response.aiter_bytes = marked_chunks
