"""run_async: runs a coroutine from plain code, in a script, a command or a notebook, and ends it in order at Ctrl-C."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from forge_env.utils.exits import ending_signals

T = TypeVar("T")

BLOCKED_SECONDS = 1.0
"""An event loop that does nothing for so long after a signal runs code that blocks it, such as `tasks` of a user."""
_WAKE_SECONDS = 0.5


def run_async(work: Coroutine[Any, Any, T], *, insists: bool = True) -> T:
    """Run a coroutine to its end.

    Ctrl-C, SIGTERM and the end of the terminal cancel the coroutine, so that it closes what it has opened; each further
    one cancels it again. An exception from a signal handler would be raised in whatever task runs at that moment; only
    a signal at a blocked loop makes one. Then KeyboardInterrupt is raised, or SystemExit after any but Ctrl-C. A
    notebook runs its code in an event loop: there the coroutine has a loop in another thread.

    Args:
        insists: one signal is enough to interrupt a blocked loop; otherwise it takes a second one.
    """
    signals: list[int] = []
    try:
        return _in_thread(work, signals) if _is_in_loop() else asyncio.run(_cancellable(work, signals, insists))
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):
        if not signals:
            raise
        if signals[0] == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + signals[0]) from None


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Cancel:
    """Cancels the task that makes it, from any thread."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._loop, self._task = asyncio.get_running_loop(), task
        self.pending: list[float] = []  # the times of calls that the loop has not noticed
        self.thread = threading.get_ident()

    def __call__(self) -> bool:
        """Returns False if an earlier call is not noticed: the loop is blocked."""
        self.pending.append(time.monotonic())
        if self.pending[-1] > self.pending[0] + BLOCKED_SECONDS:
            return False
        self._loop.call_soon_threadsafe(self._now)
        return True

    def _now(self) -> None:
        self.pending.clear()
        self._task.cancel()


async def _cancellable(work: Coroutine[Any, Any, T], signals: list[int], insists: bool) -> T:
    cancel = _Cancel()

    def stop(number: int) -> None:
        if not cancel():
            raise KeyboardInterrupt  # the code of a user may catch any other exception
        if insists:
            insist = threading.Timer(BLOCKED_SECONDS, again, [number])
            insist.daemon = True
            insist.start()

    def again(number: int) -> None:
        if cancel.pending:
            signal.pthread_kill(cancel.thread, number)

    with _on_signal(stop, signals), _waking(asyncio.get_running_loop()):
        return await work


def _in_thread(work: Coroutine[Any, Any, T], signals: list[int]) -> T:
    """Run it on a loop in a thread of its own, while this thread waits for it and for a signal."""
    ready: Future[_Cancel] = Future()
    result: Future[T] = Future()

    async def begin() -> T:
        ready.set_result(_Cancel())
        return await work

    def run() -> None:
        try:
            result.set_result(asyncio.run(begin()))
        except BaseException as error:
            result.set_exception(error)

    def stop(number: int) -> None:
        if not (cancel := ready.result())():
            error = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(cancel.thread), error)

    with _on_signal(stop, signals):
        threading.Thread(target=run, name="run_async", daemon=True).start()
        while not result.done():  # a signal that comes just before the wait does not end it
            wait([result], timeout=_WAKE_SECONDS)
        return result.result()


@contextmanager
def _on_signal(stop: Callable[[int], None], signals: list[int]) -> Iterator[None]:
    """Let Ctrl-C and `ending_signals` call `stop`; Python handles signals in its main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        signals.append(number)
        stop(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, *ending_signals())}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _waking(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let signals wake the loop: Python calls a handler only after the wait if its signal comes just before it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, reader.recv, 4096)
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous)
            loop.remove_reader(reader)
