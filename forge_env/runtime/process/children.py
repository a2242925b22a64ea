"""Child processes of this one: killing them, and waiting for their ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable


def kill_children(pids: Iterable[int]) -> None:
    """End these processes if they are still our children; another process with such a number is left alone."""
    for pid in pids:
        try:
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
        except (ChildProcessError, ProcessLookupError):
            pass


def is_reaped(pid: int) -> bool:
    """Whether a child has ended; its exit status is collected here, or was collected elsewhere."""
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:  # it was reaped elsewhere
        return True
