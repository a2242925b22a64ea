"""One connection to an MCP server, in a task of its own.

The `mcp` library's task groups must be left by the task that entered them. Callers come and go, and are cancelled by
their deadlines, so none of them is that task.
"""

from __future__ import annotations

import asyncio
from typing import Any

from envs.tool_api.mcp.transport import Stderr, Transport
from forge_env.core.errors import ServiceError, first_error

_CLOSE_SECONDS = 10.0  # the library gives a process two seconds, then two more, before it kills it


class Session:
    """Open it, call its `client`, and close it."""

    client: Any

    def __init__(self, transport: Transport, stderr: Stderr) -> None:
        self.stderr = stderr
        self._transport = transport
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._broken = False

    @property
    def is_broken(self) -> bool:
        return self._broken or self._task.done()

    @is_broken.setter
    def is_broken(self, value: bool) -> None:
        self._broken = value

    async def open(self, seconds: float) -> None:
        """Connect.

        Raises:
            ServiceError: when that fails or takes too long; nothing is left then.
        """
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
            reason = (
                f"{type(first_error(error)).__name__}: {first_error(error)}" if error else f"not within {seconds:g} s"
            )
            raise ServiceError(f"did not start: {reason}")

    async def close(self) -> None:
        """Leave the connection; a process that it started has ended then. May be called again."""
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
            self._task.exception()  # looked at, or asyncio complains: what failed was told to the callers

    async def _live(self) -> None:
        from mcp import Client

        async with Client(self._transport, cache=None) as client:
            self.client = client
            self._ready.set()
            await self._stop.wait()
