"""Transports to MCP servers: a process over its standard input and output, or streamable HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from contrib.apis.http.credentials import Credentials
from contrib.apis.mcp import exact_numbers
from contrib.apis.mcp.results import LenientStream
from contrib.common.guard import guarded
from contrib.common.http_clients import proxy_of
from forge_env.core.errors import UserError

_TAIL_BYTES = 4000
# It writes a traceback for each line that is no message, those that `LenientStream` reads included.
logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)


class Stderr:
    """Keeps the last _TAIL_BYTES that a process writes to its standard error."""

    def __init__(self) -> None:
        self._tail = bytearray()

    @property
    def text(self) -> str:
        return " ".join(self._tail.decode(errors="replace").split())

    def add(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(reading, self._read, reading, loop)
        try:
            with os.fdopen(writing, "w") as file:
                yield file
        finally:
            self._read(reading, loop)
            loop.remove_reader(reading)
            os.close(reading)

    def _read(self, reading: int, loop: asyncio.AbstractEventLoop) -> None:
        try:
            data = os.read(reading, 65536)
        except BlockingIOError:
            return
        if not data:
            loop.remove_reader(reading)
        self.add(data)


def command_of(source: str) -> list[str]:
    try:
        command = shlex.split(source)
    except ValueError as error:
        raise UserError(f"the MCP server {source!r} is no command line: {error}") from None
    if not command:
        raise UserError("the MCP server is empty: write mcp:COMMAND LINE or mcp:https://...")
    if shutil.which(command[0]) is None:
        raise UserError(f"the MCP server {source!r} cannot be started: there is no program {command[0]!r}")
    return command


@asynccontextmanager
async def stdio(command: Sequence[str], env: dict[str, str], stderr: Stderr) -> AsyncIterator[Any]:
    """The transport to a server process, which ends when this is left and when this process dies."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    program, *arguments = guarded(command)
    parameters = StdioServerParameters(
        command=program, args=arguments, env=env, encoding=exact_numbers.ENCODING, encoding_error_handler="replace"
    )
    async with stderr.open() as errlog, stdio_client(parameters, errlog=errlog) as (reading, writing):
        yield LenientStream(reading), writing


@asynccontextmanager
async def streamable_http(url: str, credentials: Credentials, seconds: float, proxy: str = "") -> AsyncIterator[Any]:
    """The transport to a server at a URL. The mcp library follows redirects within the server's origin only."""
    from mcp.client.streamable_http import streamable_http_client

    async with (
        _http_client(url, credentials, seconds, proxy) as client,
        streamable_http_client(url, http_client=client) as (reading, writing),
    ):
        yield LenientStream(reading), writing


@asynccontextmanager
async def server_sent_events(url: str, credentials: Credentials, seconds: float, proxy: str = "") -> AsyncIterator[Any]:
    """The transport to a server at a URL that has only the older transport, of server-sent events."""
    from mcp.client.sse import sse_client

    def client(**_: Any) -> Any:
        return _http_client(url, credentials, seconds, proxy)

    async with sse_client(url, httpx_client_factory=client) as (reading, writing):
        yield LenientStream(reading), writing


def _http_client(url: str, credentials: Credentials, seconds: float, proxy: str) -> Any:
    import httpx2

    client = httpx2.AsyncClient(
        headers=dict(credentials.headers),
        timeout=httpx2.Timeout(seconds),
        trust_env=False,
        proxy=proxy or proxy_of(url),
    )
    client.event_hooks = {"request": [exact_numbers.before_request], "response": [exact_numbers.after_response]}
    return client


Transport = AbstractAsyncContextManager[Any]
