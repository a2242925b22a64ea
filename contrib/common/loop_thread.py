"""An event loop in a daemon thread, shared by all synchronous callers of async code in a process.

The thread starts with the first `LoopThread.lease()` and ends with the last `release()`. A forked process does not
inherit the thread and starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from forge_env.core.errors import ServiceError, UserError

T = TypeVar("T")
STOP_SECONDS = 15.0


class LoopThread:
    """The loop and its thread. Get it by `LoopThread.lease()`, and return every lease by `release()`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.closers: dict[object, Callable[[], Awaitable[Any]]] = {}
        """Owner -> function that closes it; called at exit for owners that have not closed themselves."""
        self._leases = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="forge_env loop", daemon=True)
        self._thread.start()

    @staticmethod
    def lease() -> LoopThread:
        """Return the loop of this process; start it if there is none."""
        global _current
        with _lock:
            if _current is None:
                _current = LoopThread()
            _current._leases += 1
            return _current

    def release(self) -> None:
        """Return a lease; the last one stops the thread and waits for it."""
        global _current
        with _lock:
            self._leases -= 1
            is_last = self._leases == 0 and _current is self
            if is_last:
                _current = None
        if is_last and self.is_mine:
            self._stop()

    @property
    def is_mine(self) -> bool:
        """Whether the loop belongs to this process; False after a fork."""
        return self.pid == os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine on the loop and wait for its result; after an interrupt or a timeout it is cancelled."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UserError("a SyncEnv cannot be called from async code of an environment; call it in a thread")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():
                raise
            raise ServiceError(f"the event loop did not answer within {seconds:g} s") from None
        finally:
            future.cancel()

    def start(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Start a coroutine on the loop without waiting for it."""
        try:
            self._loop.call_soon_threadsafe(lambda: _keep(self._loop.create_task(function())))
        except RuntimeError:  # the loop is closed, and so is everything on it
            pass

    def close_all(self) -> None:
        """Close everything that is still open; at the end of the process."""
        self.run(_close_each(list(self.closers.values())), STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_all())
        finally:
            self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)


async def _close_each(closers: list[Callable[[], Awaitable[Any]]]) -> None:
    await asyncio.gather(*(close() for close in closers), return_exceptions=True)


async def _cancel_all() -> None:
    remaining = asyncio.all_tasks() - {asyncio.current_task()}
    for task in remaining:
        task.cancel()
    if remaining:
        await asyncio.wait(remaining, timeout=STOP_SECONDS)
    await asyncio.get_running_loop().shutdown_asyncgens()


_tasks: set[asyncio.Task[Any]] = set()


def _keep(task: asyncio.Task[Any]) -> None:
    """Keep a reference to a task until it is done: the loop has only a weak one."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


_lock = threading.Lock()
_current: LoopThread | None = None
_parents: list[LoopThread] = []


def _at_exit() -> None:
    if _current is not None:
        try:
            _current.close_all()
        except ServiceError:
            pass  # the process ends anyway


def _after_fork() -> None:
    """Drop the parent's loop: no thread of this process runs it.

    A reference is kept, so that its pending tasks are not reported as destroyed.
    """
    global _lock, _current
    _lock = threading.Lock()
    if _current is not None:
        _parents.append(_current)
    _current = None


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
