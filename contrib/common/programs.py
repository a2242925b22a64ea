"""Programs that folders of contrib start: their end, and their last output."""

from __future__ import annotations

import asyncio
import contextlib


async def stop(process: asyncio.subprocess.Process, seconds: float) -> None:
    """End a process by SIGTERM, and by force if it does not end in time. May be called again.

    If this is interrupted, there is no force: a guard that was killed could not end what it guards.
    """
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def read_tail(stream: asyncio.StreamReader | None, tail: bytearray, most: int) -> None:
    """Read a stream to its end; `tail` has its last `most` bytes at any time."""
    assert stream is not None
    while data := await stream.read(most):
        tail += data
        del tail[:-most]


def last_words(stderr: bytes | bytearray) -> str:
    """Return the last lines of the output of a process, for the end of a sentence."""
    return " | ".join(bytes(stderr).decode("utf-8", "replace").strip().splitlines()[-6:])[-600:]
