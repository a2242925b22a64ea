"""Runs a command's coroutine; SIGTERM cancels it, as asyncio does for Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end.

    SIGTERM cancels the coroutine, so that it closes what it has opened. An exception from a signal handler would
    instead be raised in whatever task runs at that moment.

    Raises:
        SystemExit: 143, after SIGTERM.
        KeyboardInterrupt: after Ctrl-C.
    """
    terminated: list[int] = []
    try:
        return asyncio.run(_cancellable(work, terminated))
    except asyncio.CancelledError:
        if terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise


async def _cancellable(work: Coroutine[Any, Any, T], terminated: list[int]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    if threading.current_thread() is not threading.main_thread():
        return await work

    def stop() -> None:
        terminated.append(signal.SIGTERM)
        task.cancel()

    previous = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        return await work
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, previous)
