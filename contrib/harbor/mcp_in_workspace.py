"""The transport to an MCP server that runs in a workspace, over its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from contrib.apis.mcp.results import LenientStream
from contrib.apis.mcp.transport import Stderr
from contrib.common.json_text import decoded, marked_text
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import ForgeError
from forge_env.core.json_text import without_marks

_END_SECONDS = 2.0
"""Seconds that a server has to end after the end of its input."""
_LONG = 1e6
_MOST_WAITING = 16 * 2**20
"""Bytes of messages that the session has not taken yet, and the longest message. A server that sends more is ended."""
_LINE_BYTES = 100
"""What a line takes in memory beside its text."""


@asynccontextmanager
async def stdio_in_workspace(
    workspace: Workspace,
    command: Sequence[str],
    stderr: Stderr,
    *,
    user: str | int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> AsyncIterator[Any]:
    """Start a server, and end it when this is left. Arguments as of `Workspace.exec`."""
    import anyio
    from mcp.shared.message import SessionMessage

    incoming, reading = anyio.create_memory_object_stream[Any](0)
    writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    rest, waiting = bytearray(), 0

    def on_output(name: str, data: bytes) -> None:
        nonlocal rest, waiting
        if name == "stderr":
            stderr.add(data)
        if name == "stderr" or taking.cancelling() or taking.done():
            return
        rest += data
        if b"\n" in data:
            *whole, tail = rest.split(b"\n")
            rest = tail
            for line in filter(None, map(bytes.strip, map(bytes, whole))):
                lines.put_nowait(line)
                waiting += len(line) + _LINE_BYTES
        if waiting + len(rest) > _MOST_WAITING:
            stderr.add(b"[ended: it sent more than %d MiB at once]" % (_MOST_WAITING >> 20))
            running.cancel()
            taking.cancel()

    async def run() -> None:
        try:
            await workspace.exec(
                command, stdin=theirs.fileno(), user=user, env=env, cwd=cwd, on_output=on_output, timeout_s=_LONG
            )
        except ForgeError as error:  # it could not be started, or its workspace has failed
            stderr.add(str(error).encode())
        finally:
            lines.put_nowait(b"")

    async def take() -> None:
        """Give the session a message when it has taken the one before: those that wait are text, and counted."""
        nonlocal waiting
        try:
            while line := await lines.get():
                waiting -= len(line) + _LINE_BYTES
                await incoming.send(_message(line))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass  # the session is gone
        finally:
            incoming.close()  # the session sees the end

    async def write() -> None:
        with contextlib.suppress(OSError):  # it has ended, which `run` tells
            async for message in outgoing:
                line = without_marks(message.message.model_dump_json(by_alias=True, exclude_unset=True)) + "\n"
                await asyncio.get_running_loop().sock_sendall(ours, line.encode("utf-8", "replace"))

    taking, running, sending = map(asyncio.create_task, (take(), run(), write()))
    try:
        yield LenientStream(reading), writing
    finally:
        sending.cancel()
        ours.shutdown(socket.SHUT_WR)
        await asyncio.wait({running}, timeout=_END_SECONDS)
        running.cancel()
        taking.cancel()
        await asyncio.wait({taking, running, sending})
        for end in (ours, theirs, incoming, reading, writing, outgoing):
            end.close()


def _message(line: bytes) -> Any:
    """Return the message of a line, or the exception that says why it is none."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(marked_text(decoded(line)), by_name=False))
    except ValueError as error:
        return error
