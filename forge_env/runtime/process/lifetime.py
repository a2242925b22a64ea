"""The start of a process, and processes that end with another one."""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path

from forge_env.runtime.process.children import kill_group


def process_began() -> float:
    """The start of this process, in seconds since the epoch: before its interpreter and its imports."""
    # The 22nd field, in ticks since the machine started; the second field is a name that may have spaces.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def die_with(pid: int, *, group: bool = False) -> None:
    """End this process when process `pid` ends, for any reason: a thread waits for its pidfd.

    Args:
        group: also end all processes of this process's group, which it must lead, see `kill_group`.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)

    def wait() -> None:
        select.select([pidfd], [], [])
        if group and os.getpgid(0) == os.getpid():
            kill_group(os.getpid())
        os._exit(1)

    threading.Thread(target=wait, name=f"die-with-{pid}", daemon=True).start()
