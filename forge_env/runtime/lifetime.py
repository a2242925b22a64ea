"""Processes that end with another one."""

from __future__ import annotations

import os
import select
import threading


def die_with(pid: int) -> None:
    """End this process when another one ends, however that ends: a thread waits for the kernel to say so."""
    try:
        other = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)

    def wait() -> None:
        select.select([other], [], [])
        os._exit(1)

    threading.Thread(target=wait, name=f"die-with-{pid}", daemon=True).start()
