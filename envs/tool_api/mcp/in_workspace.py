"""The transport to an MCP server that runs in a workspace, over its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from envs.tool_api.mcp.results import LenientStream
from envs.tool_api.mcp.transport import Stderr
from forge_env.core.errors import ForgeError
from forge_env.core.workspace import Workspace

_END_SECONDS = 2.0
"""Seconds that a server has to end after the end of its input."""
_LONG = 1e6
_LARGEST_LINE = 16 * 2**20


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

    received, reading = anyio.create_memory_object_stream[Any](math.inf)
    writing, sent = anyio.create_memory_object_stream[SessionMessage](0)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    rest = b""

    def on_output(name: str, data: bytes) -> None:
        nonlocal rest
        if name == "stderr":
            stderr.add(data)
            return
        *lines, rest = (rest + data).split(b"\n")
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the session is gone
            for line in filter(None, map(bytes.strip, lines)):
                received.send_nowait(_message(line))
        if len(rest) > _LARGEST_LINE:
            received.close()

    async def run() -> None:
        try:
            await workspace.exec(
                command, stdin=theirs.fileno(), user=user, env=env, cwd=cwd, on_output=on_output, timeout_s=_LONG
            )
        except ForgeError as error:  # it could not be started, or its workspace has failed
            stderr.add(str(error).encode())
        finally:
            received.close()  # the session sees the end

    async def write() -> None:
        with contextlib.suppress(OSError):  # it has ended, which `run` tells
            async for message in sent:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
                await asyncio.get_running_loop().sock_sendall(ours, line.encode("utf-8", "replace"))

    running, sending = asyncio.create_task(run()), asyncio.create_task(write())
    try:
        yield LenientStream(reading), writing
    finally:
        sending.cancel()
        ours.shutdown(socket.SHUT_WR)
        await asyncio.wait({running}, timeout=_END_SECONDS)
        running.cancel()
        await asyncio.wait({running, sending})
        for end in (ours, theirs, reading, writing, sent):
            end.close()


def _message(line: bytes) -> Any:
    """Return the message of a line, or the exception that says why it is none."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False))
    except ValueError as error:
        return error
