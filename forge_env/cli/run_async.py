"""Runs a command's coroutine; Ctrl-C and SIGTERM cancel it, and interrupt it if its event loop is blocked."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

BLOCKED_SECONDS = 1.0
"""An event loop that does nothing for so long after a signal runs code that blocks it, such as `tasks` of a user."""


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end.

    A signal cancels the coroutine, so that it closes what it has opened. An exception from a signal handler would be
    raised in whatever task runs at that moment; only a second signal, or a blocked loop, makes one.
    """
    received: list[int] = []
    try:
        return asyncio.run(_cancellable(work, received))
    except (asyncio.CancelledError, KeyboardInterrupt):
        if not received:
            raise
        if received[0] == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + received[0]) from None


async def _cancellable(work: Coroutine[Any, Any, T], received: list[int]) -> T:
    loop, task, main = asyncio.get_running_loop(), asyncio.current_task(), threading.current_thread()
    assert task is not None and main.ident is not None
    if main is not threading.main_thread():
        return await work

    def stop(number: int, frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt  # the code of a user may catch any other exception
        has_run = threading.Event()
        loop.call_soon_threadsafe(has_run.set)
        loop.call_soon_threadsafe(task.cancel)
        threading.Thread(target=insist, args=(number, has_run), name="blocked-loop", daemon=True).start()

    def insist(number: int, has_run: threading.Event) -> None:
        if not has_run.wait(BLOCKED_SECONDS):
            signal.pthread_kill(main.ident, number)  # type: ignore[arg-type]

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return await work
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
