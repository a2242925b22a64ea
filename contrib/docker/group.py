"""The control group of the container, read from inside: only the engine can set its limits.

It takes the place of a slot's group (`cgroup_slots.py`), since a container runs only one snippet and its agent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from forge_env.core.sandbox import Limits
from sandboxes.host.cgroup_slots import SlotGroup
from sandboxes.host.cgroups import Groups
from sandboxes.host.zygote import BACKSTOP_PROCESSES

_ROOT = Path("/sys/fs/cgroup")


def with_exact_processes(order: dict[str, Any]) -> dict[str, Any]:
    """Remove the extra processes that a snippet gets if a control group enforces its limit.

    The group of the container counts the agent's processes, too, so the resource limit enforces it here.
    """
    limits = order["limits"]
    if not limits["memory_is_counted"]:
        return order
    return order | {"limits": limits | {"processes": limits["processes"] - BACKSTOP_PROCESSES}}


class ContainerGroups(Groups):
    """Raises OSError if the group cannot be read, or limits no memory."""

    def __init__(self) -> None:
        v2 = (_ROOT / "cgroup.controllers").exists()
        self.version = "cgroup_v2" if v2 else "cgroup_v1"
        self.limits_cpu = False  # the engine limits the CPU
        self._limit = _ROOT / ("memory.max" if v2 else "memory/memory.limit_in_bytes")
        self._only = ContainerSlot(str(_ROOT / ("memory.events" if v2 else "memory/memory.oom_control")))
        if not self.memory_bytes():
            raise OSError("the container has no memory limit")

    def memory_bytes(self) -> int:
        """Return the limit in bytes, 0 for none. Raises OSError."""
        text = self._limit.read_text().strip()
        return int(text) if text.isdigit() and int(text) < 2**62 else 0

    def slot(self, number: int, *, keep_open: bool) -> ContainerSlot:  # type: ignore[override]
        return self._only

    def close(self) -> None:
        self._only.close()


class ContainerSlot(SlotGroup):
    """Reads what happens in a group that the engine has made.

    Args:
        events: the file that counts processes killed for lack of memory.
        refusals: the file that counts processes refused by the limit; "" for none.
    """

    def __init__(self, events: str, refusals: str = "") -> None:
        super().__init__([], keep_open=True)
        self._events, self._refusals = events, refusals

    def join_files(self) -> list[int]:
        # A snippet is in the group already, so joining writes to /dev/null.
        return [os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)]

    def begin(self, limits: Limits, *, extra_processes: int) -> None:
        self._before = self._counters()

    def _counters(self) -> dict[str, int]:
        counts = self._fields(self._events)
        refusals = self._fields(self._refusals).get("max", 0) if self._refusals else 0
        return {"killed": counts.get("oom_kill", 0), "at_limit": counts.get("oom", 0), "refused": refusals}

    def allow_cpus(self, cpus: float) -> None:
        """The engine has limited them."""

    def _met_limit(self, more: dict[str, int]) -> bool:
        """Version 1 does not count hits of the limit, and its peak cannot be reset from inside."""
        return more["at_limit"] > 0 or not self._events.endswith("memory.events")

    def _peak(self) -> int:
        return 0  # unknown: the peak of the largest process is reported instead

    def _processes(self) -> int:
        return 0
