"""Waiting for what another process or thread does, and asking whether a process lives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 60.0
"""For anything that must happen at all, on a busy machine."""


def is_alive(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process stand still."""
    states = (path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return all(state == "T" for state in states)


def wait_until(condition: Callable[[], object], what: str = "what was waited for", seconds: float = DEADLINE_S) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: when it does not hold in time; the message names `what`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


async def until(
    condition: Callable[[], object], what: str = "what was waited for", seconds: float = DEADLINE_S
) -> None:
    """`wait_until` in a coroutine.

    Raises:
        AssertionError: when it does not hold in time; the message names `what`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)
