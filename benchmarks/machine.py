"""Describes the machine that a benchmark ran on, so that a result can be read later."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from trainers.run import versions


def describe() -> dict[str, Any]:
    """Processor, cores, memory, system and package versions."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in cpuinfo.splitlines() if "model name" in line), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions(),
    }
