"""Answers: the calls on an event loop that wait for the engine's thread. No call waits for an engine that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from forge_env.core.errors import PolicyError

Answer = tuple[asyncio.Future[Any], Any, BaseException | None]
"""A call, and its value or its error."""


class Answers:
    """Futures that the engine's thread resolves. All but its last three methods are called on the event loop."""

    def __init__(self) -> None:
        self.waiting: set[asyncio.Future[Any]] = set()
        """Unanswered futures; changed only on the event loop."""
        self.why_broken = ""
        """The reason why the engine is broken for good, as a sentence; empty while it runs."""
        self._loop: asyncio.AbstractEventLoop

    def attach(self) -> None:
        """Take the running event loop."""
        self._loop = asyncio.get_running_loop()

    def new_future(self) -> asyncio.Future[Any]:
        """A future that only `resolve` ends."""
        return self._loop.create_future()

    def future(self) -> asyncio.Future[Any]:
        """A future that ends with the engine at the latest."""
        future = self.new_future()
        self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        return future

    def fail_all(self, reason: str) -> None:
        """Fail every waiting call. It runs on the event loop, so no call can begin to wait meanwhile."""
        for future in list(self.waiting):
            if not future.done():
                future.set_exception(PolicyError(reason))

    def break_all(self, reason: str) -> None:
        """Fail every waiting call, and refuse all later ones."""
        self.why_broken = self.why_broken or reason
        self.fail_all(reason)

    # ---- from the engine's thread ----

    def resolve(self, future: asyncio.Future[Any], value: Any = None, *, error: BaseException | None = None) -> None:
        self.resolve_all([(future, value, error)])

    def resolve_all(self, answers: Sequence[Answer]) -> None:
        """Answer calls that have no answer yet. The event loop is woken once: it then takes the interpreter."""

        def deliver() -> None:
            for future, value, error in answers:
                if not future.done():
                    future.set_result(value) if error is None else future.set_exception(error)

        if answers:
            self._loop.call_soon_threadsafe(deliver)

    def broke(self, reason: str) -> None:
        """Let the event loop call `break_all`."""
        self._loop.call_soon_threadsafe(self.break_all, reason)
