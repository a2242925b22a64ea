"""Ctrl-C and SIGTERM end a run in an orderly way."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable

_received: list[signal.Signals] = []


async def with_signals(work: Awaitable[None]) -> int:
    """Run `work`; Ctrl-C and SIGTERM cancel it, so that everything it started is ended in order.

    A second signal cancels it again: work that answers the first one by finishing something gives that up.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    _received.clear()

    def stop(number: signal.Signals) -> None:
        _received.append(number)
        if len(_received) <= 2:
            text = "stopping; once more ends it at once" if len(_received) == 1 else "ending every process of this run"
            print(f"\n{text}", file=sys.stderr, flush=True)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not _received:
            raise
    except Exception:
        if not _received:
            raise
    return 128 + _received[0] if _received else 0


def was_signalled() -> bool:
    """Whether a signal has asked the run of this process to end."""
    return bool(_received)
