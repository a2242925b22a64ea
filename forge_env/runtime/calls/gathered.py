"""Gathered: calls that travel together.

A message takes Monarch as long as the engine a short turn. So those calls of a process to one replica that begin in the
same pass of its event loop are one message, and so are answers that come in one pass. Each call keeps its own deadline,
error and cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from forge_env.core.errors import ReplicaDied
from forge_env.runtime.calls.answers import GRACE_S, in_background

Call = tuple[str, str, tuple[Any, ...], Mapping[str, Any]]  # its id, the endpoint, the arguments
Answer = tuple[str, Any, Exception | None]  # the id of its call, what that returned, what it raised


class Gathered:
    """The calls in flight of this process to the long endpoints of a replica.

    Args:
        death: done when the replica is gone, with the reason.
    """

    def __init__(self, handle: Any, death: asyncio.Future[str]) -> None:
        self._handle, self._death = handle, death
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._next: list[Call] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._port: Any = None
        death.add_done_callback(self._lose)

    async def call(self, call: Call) -> Any:
        """Send a call with the others of this pass, and await its answer."""
        loop = asyncio.get_running_loop()
        if not self._next:
            loop.call_soon(lambda: in_background(self._send(), self._sending))
        self._next.append(call)
        answer = self._waiting[call[0]] = loop.create_future()
        try:
            return await answer
        finally:
            del self._waiting[call[0]]

    async def _send(self) -> None:
        # A cancelled call stays here: its `cancel` may have been sent before.
        calls = [call for call in self._next if call[0] in self._waiting and not self._waiting[call[0]].done()]
        self._next = []
        if not calls:
            return
        try:
            await self._handle.begin_calls.call_one(calls, self._port or self._open())
        except Exception as error:
            await asyncio.wait({self._death}, timeout=GRACE_S)
            self._end([call[0] for call in calls], error)

    def _open(self) -> Any:
        from monarch.actor import Channel

        self._port, answers = Channel.open()
        self._port.return_undeliverable = False  # an actor outlives those that wait for its answers
        receiving = asyncio.ensure_future(self._receive(answers))
        self._death.add_done_callback(lambda _: receiving.cancel())
        return self._port

    async def _receive(self, answers: Any) -> None:
        try:
            while True:
                for id, value, error in await answers.recv():
                    self._end([id], error, value)
        except Exception as error:  # an answer that cannot be read
            self._port = None
            self._end(list(self._waiting), error)

    def _lose(self, death: asyncio.Future[str]) -> None:
        for sending in self._sending:
            sending.cancel()
        self._end(list(self._waiting), ReplicaDied(death.result()))

    def _end(self, ids: Iterable[str], error: Exception | None, value: Any = None) -> None:
        for waiting in filter(None, map(self._waiting.get, ids)):
            if not waiting.done():
                waiting.set_result(value) if error is None else waiting.set_exception(error)
