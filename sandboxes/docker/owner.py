"""Who owns a container: labels that outlive the owner, and the reaper that removes what an owner has left.

A container ends by itself when its owner is gone, because its standard input then ends. The reaper is for what an owner
that was killed had created and not yet started, and for engines that were killed themselves.
"""

from __future__ import annotations

import contextlib
import os
import time
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from forge_env.core.errors import SandboxError
from sandboxes.docker.engine import Engine

LABEL = "forge-env.sandbox"
_MACHINE, _PID, _START = f"{LABEL}.machine", f"{LABEL}.pid", f"{LABEL}.start-time"
_STALE_S = 600.0
"""After which a container that does not run is nobody's: its owner starts it within seconds."""


def labels() -> dict[str, str]:
    """Return the labels of a container that this process owns."""
    pid = os.getpid()
    return {LABEL: "1", _MACHINE: _machine(), _PID: str(pid), _START: _start_time(pid)}


async def reap(engine: Engine) -> int:
    """Remove the containers whose owner is gone, and return how many they were. Raises SandboxError."""
    listed = await engine.call(engine.client.api.containers, all=True, filters={"label": LABEL})
    orphans = [container["Id"] for container in listed if _is_orphan(container)]
    for container in orphans:
        await remove(engine, container)
    return len(orphans)


async def remove(engine: Engine, container: str) -> None:
    """Remove a container, running or not, with everything in it. Raises SandboxError."""
    try:
        await engine.call(engine.client.api.remove_container, container, force=True, v=True)
    except SandboxError as error:
        if not engine.is_missing(error):
            raise


def _is_orphan(container: dict[str, Any]) -> bool:
    owner = container.get("Labels") or {}
    if owner.get(_MACHINE) == _machine() != "":
        return _start_time(owner.get(_PID, "")) != owner.get(_START)
    # Owned from another machine, or before this one was last started: its owner cannot be looked up.
    return container.get("State") != "running" and time.time() - _created(container) > _STALE_S


def _created(container: dict[str, Any]) -> float:
    created = container.get("Created", 0)
    return datetime.fromisoformat(created).timestamp() if isinstance(created, str) else float(created)


@cache
def _machine() -> str:
    """Return what names this start of this machine and this pid namespace; "" where there is no /proc."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    return ""


def _start_time(pid: int | str) -> str:
    """Return when a process was started, in ticks of the kernel; "" if there is no such process."""
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, ValueError):
        return ""
