"""Ctrl-C and SIGTERM end a run in an orderly way."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable


async def with_signals(work: Awaitable[None]) -> int:
    """Run `work`; Ctrl-C and SIGTERM cancel it, so that everything it started is ended in order."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        if len(received) == 1:
            print("\nstopping: ending every process of this run", file=sys.stderr, flush=True)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
    except Exception:
        if not received:
            raise
    return 128 + received[0] if received else 0
