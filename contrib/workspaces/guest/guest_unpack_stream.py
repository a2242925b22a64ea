"""A layer as a stream: decompressed by a process of its own, counted, and named by its digest.

Standard library only, and zstandard if the layer needs it; imported by `guest_unpack.py`, never by the host.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

BLOCK = 2**18
ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP = b"\x1f\x8b"
_ZSTD_WINDOW = 2**27


class Refused(Exception):
    """The layer breaks a rule or a limit."""


class Failed(Exception):
    """The decompressor has failed; the argument is the report."""


class Input:
    """Standard input as a file, with the bytes that were read already."""

    def __init__(self, first: bytes) -> None:
        self.first = first

    def read(self, size: int) -> bytes:
        first, self.first = self.first, b""
        return first or os.read(0, max(size, 1))


def decompress(first: bytes) -> Iterator[bytes]:
    source = Input(first)
    if first.startswith(_GZIP):
        yield from _gunzip(source)
    elif first.startswith(ZSTD):
        import zstandard

        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        file: Any = source
        with decompressor.stream_reader(file, read_size=BLOCK, read_across_frames=True, closefd=False) as reader:
            while block := reader.read(BLOCK):
                yield block
    else:
        while block := source.read(BLOCK):
            yield block


def _gunzip(source: Input) -> Iterator[bytes]:
    """Yield the content of one gzip member after another: some tools write many."""
    member, data = zlib.decompressobj(31), b""
    while True:
        data = data or source.read(BLOCK)
        if not data:
            if not member.eof:
                raise Refused("its gzip stream ends too early")
            return
        if member.eof:
            if not data.strip(b"\0"):
                data = b""
                continue
            member = zlib.decompressobj(31)
        block = member.decompress(data, BLOCK)
        data = member.unused_data if member.eof else member.unconsumed_tail
        if block:
            yield block


class Decompressor:
    """A process that decompresses while files are written, and names the content: two processors share the work.

    Args: limit: bytes that come out of it at most.
    """

    digest = ""
    """Of all that came out, 64 hexadecimal digits; set in the end."""

    def __init__(self, blocks: Iterator[bytes], limit: int) -> None:
        self.content, content = os.pipe()
        self.verdict, verdict = os.pipe()
        if not os.fork():
            try:
                write(verdict, json.dumps(_send_counted(blocks, limit, content)).encode())
            finally:
                os._exit(0)
        for fd in (0, content, verdict):
            os.close(fd)

    def blocks(self) -> Iterator[bytes]:
        while block := os.read(self.content, BLOCK):
            yield block
        verdict = json.loads(os.read(self.verdict, 2**12) or b"{}")
        if "digest" not in verdict:
            raise Failed(verdict)
        self.digest = verdict["digest"]


def _send_counted(blocks: Iterator[bytes], limit: int, target: int) -> dict[str, Any]:
    digest, rest = hashlib.sha256(), limit
    try:
        fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, 2**20)
    except OSError:
        pass  # an ordinary user has a budget for pipes
    try:
        for block in blocks:
            rest -= len(block)
            if rest < 0:
                raise Refused(f"it unpacks to more than {limit} bytes, the limit")
            digest.update(block)
            write(target, block)
    except Exception as failure:
        return explain(failure)
    return {"digest": digest.hexdigest()}


def write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


class Stream:
    """Blocks as the file that `tarfile` reads: it only goes forwards."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks = blocks
        self.block, self.at, self.position = b"", 0, 0

    def read(self, size: int) -> bytes:
        end = self.at + size
        if end <= len(self.block):
            data = self.block[self.at : end]
            self.at = end
        else:
            return b"".join(self.some(size))
        self.position += size
        return data

    def some(self, size: int) -> Iterator[bytes]:
        """Yield `size` bytes in parts; fewer at the end of the stream."""
        while size:
            if self.at == len(self.block):
                self.block, self.at = next(self.blocks, b""), 0
                if not self.block:
                    return
            part = self.block[self.at : self.at + size] if self.at or size < len(self.block) else self.block
            self.at += len(part)
            self.position += len(part)
            size -= len(part)
            yield part

    def tell(self) -> int:
        return self.position

    def seek(self, position: int) -> None:
        if position < self.position:
            raise Refused("its headers lead backwards")
        for _ in self.some(position - self.position):
            pass

    def drain(self) -> None:
        for _ in self.blocks:
            pass


def explain(failure: Exception) -> dict[str, Any]:
    if isinstance(failure, Refused):
        return {"refused": printable(str(failure))}
    if isinstance(failure, MemoryError):
        return {"refused": "it takes more memory than the limit"}
    if isinstance(failure, OSError):
        if failure.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return {"no_room": True}
        place = failure.filename if isinstance(failure.filename, str) else ""
        return {"refused": printable(f"{place!r} cannot be made ({failure.strerror or failure})")}
    # Also of zstd, which has its own exceptions.
    return {"unsound": printable(f"it is no sound archive ({failure or type(failure).__name__})")}


def printable(text: str) -> str:
    """Return a text of one line that a terminal can show: names in a layer may be anything."""
    return "".join(character if character.isprintable() else "?" for character in text)[:400]
