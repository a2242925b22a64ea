"""One connection to an MCP server, in a separate task.

The task groups of the `mcp` library must be left by the task that entered them. Callers cannot be that task, since
their deadlines cancel them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from contrib.apis.mcp.transport import Stderr, Transport
from forge_env.core.errors import ServiceError, first_error

_CLOSE_SECONDS = 10.0  # the library waits twice two seconds for a process before it kills it


class McpConnection:
    client: Any

    def __init__(self, transport: Transport, stderr: Stderr) -> None:
        self.stderr = stderr
        self._transport = transport
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._is_broken = False

    @property
    def is_broken(self) -> bool:
        return self._is_broken or self._task.done()

    @is_broken.setter
    def is_broken(self, value: bool) -> None:
        self._is_broken = value

    async def open(self, seconds: float) -> None:
        self._task = asyncio.create_task(self._live(), name="mcp session")
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({self._task, ready}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            if not self._ready.is_set():
                await self.close()
        if not self._ready.is_set():
            error = self._task.exception() if self._task.done() and not self._task.cancelled() else None
            first = first_error(error) if error else None
            reason = f"{type(first).__name__}: {first}" if first else f"not within {seconds:g} s"
            raise ServiceError(f"did not start: {reason}")

    async def close(self) -> None:
        """Close the connection, and end the process that it started. May be called again."""
        self._stop.set()
        if not self._ready.is_set():
            self._task.cancel()
        try:
            await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
        finally:
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
        if self._task.done() and not self._task.cancelled():
            self._task.exception()  # retrieved, so that asyncio does not report it: the callers have got the error

    async def _live(self) -> None:
        from mcp import Client

        async with Client(self._transport, cache=None) as client:
            self.client = client
            self._ready.set()
            await self._stop.wait()
