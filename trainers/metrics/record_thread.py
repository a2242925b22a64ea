"""RecordThread: writes the large files of a run in a thread of its own, in order, so that no step waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec

P = ParamSpec("P")


class RecordThread:
    """Calls functions that write, one after the other, in its thread.

    An error ends all writing, because a record must have no gaps. The next call of any method raises the error.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="record")
        self._last: Future[None] | None = None
        self._error: BaseException | None = None

    def write(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Let the thread call a function; returns at once."""
        self._check()
        self._last = self._thread.submit(self._call, lambda: function(*args, **kwargs))

    async def wait_for_writes(self) -> None:
        """Wait until everything is written, without blocking the event loop."""
        if self._last is not None:
            await asyncio.wrap_future(self._last)
        self._check()

    def flush(self) -> None:
        """Wait until everything is written."""
        if self._last is not None:
            self._last.result()
        self._check()

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self._thread.shutdown()
        self._check()

    def _call(self, write: Callable[[], object]) -> None:
        if self._error is None:
            try:
                write()
            except BaseException as error:
                self._error = error

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
