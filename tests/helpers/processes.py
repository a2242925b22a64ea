"""What processes there are, and what they hold: those below one, descriptors of this one, control groups."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def descendants(pid: int) -> set[int]:
    """Return every living process below `pid`, in the numbers of this machine."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(entry)] = int(parent)
    found: set[int] = set()
    below = {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        found |= below
    return found


def descriptors() -> list[str]:
    """Return what the open descriptors of this process lead to."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sorted(os.readlink(link) for link in links if os.path.lexists(link))  # not that of listdir itself


@contextmanager
def without_descriptors() -> Iterator[None]:
    """This process can open no file in the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def control_groups(pid: int) -> list[str]:
    """Return the control groups that process `pid` has made, and those below them."""
    folders = (folder for folder, _, _ in os.walk("/sys/fs/cgroup"))
    return sorted(folder for folder in folders if "/forge_env-" in folder and f"-{pid}-" in folder)
