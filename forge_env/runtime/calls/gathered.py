"""Gathered: calls that travel together.

A message takes Monarch longer than a short turn of a small model. So those of a process's calls to one replica that
begin in the same pass of its event loop are one message, and so are answers that come in one pass. A call keeps its own
deadline, errors and cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from forge_env.core.errors import ReplicaDied
from forge_env.runtime.calls.answers import GRACE_S


class Call(NamedTuple):
    """A call of an endpoint."""

    id: str
    endpoint: str
    args: tuple[Any, ...]
    named: Mapping[str, Any]


class Answer(NamedTuple):
    """What a call has returned, or raised."""

    id: str
    value: Any
    error: Exception | None


class Gathered:
    """The calls of this process to one replica that are in flight.

    Args:
        handle: of the replica.
        gone: done when the replica is gone.
    """

    def __init__(self, handle: Any, gone: asyncio.Future[Any]) -> None:
        self._handle, self._gone = handle, gone
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._next: list[Call] = []
        self._name = ""  # of all callers of the replica
        self._port: Any = None
        self._receiving: asyncio.Task[None] | None = None
        gone.add_done_callback(self._end)

    async def call(self, id: str, endpoint: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Call a long endpoint together with the other calls of this pass."""
        loop = asyncio.get_running_loop()
        if not self._next:
            loop.call_soon(lambda: asyncio.ensure_future(self._send()))
        self._next.append(Call(id, endpoint, args, named))
        answer = self._waiting[id] = loop.create_future()
        try:
            return await answer
        finally:
            del self._waiting[id]

    async def _send(self) -> None:
        calls, self._next = self._next, []
        try:
            port = self._port or self._open(calls[0].id)
            await self._handle.begin.call_one(calls, self._name, port)
        except Exception as error:
            await asyncio.wait({self._gone}, timeout=GRACE_S)
            self._fail(error, [call.id for call in calls])

    def _open(self, name: str) -> Any:
        from monarch.actor import Channel

        self._name = name
        self._port, answers = Channel.open()
        self._port.return_undeliverable = False  # nobody waits for the answer of a process that has ended

        async def receive() -> None:
            try:
                while True:
                    self._take(await answers.recv())
            except Exception as error:  # an answer that cannot be read
                self._port = None
                self._fail(error, [*self._waiting])

        self._receiving = asyncio.ensure_future(receive())
        return self._port

    def _end(self, gone: asyncio.Future[str]) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
        self._fail(ReplicaDied(gone.result()), [*self._waiting])

    def _fail(self, error: Exception, ids: Iterable[str]) -> None:
        self._take([Answer(id, None, error) for id in ids])

    def _take(self, answers: list[Answer]) -> None:
        for id, value, error in answers:
            waiting = self._waiting.get(id)
            if waiting is not None and not waiting.done():
                waiting.set_result(value) if error is None else waiting.set_exception(error)
