"""The processes of this machine that live."""

from __future__ import annotations

import os
from pathlib import Path


def parents() -> dict[int, int]:
    """Return the parent of every process that lives, in the host's numbers."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found[int(entry)] = int(parent)
    return found


def descendants(pid: int) -> set[int]:
    """Return every living process below `pid`."""
    known = parents()
    found: set[int] = set()
    below = {pid}
    while below:
        below = {child for child, parent in known.items() if parent in below}
        found |= below
    return found
