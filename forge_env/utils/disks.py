"""Disks that are full: which one it is, in words for a person."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

_NO_ROOM = 2**20  # bytes


def full_disk(error: BaseException, path: Path) -> str:
    """Say which disk is full, as "the disk mounted at /data is full (0.0 MB free)"; "" where that is not the error.

    Args:
        error: that writing raised. Libraries that write by themselves, torch among them, do not raise an OSError; then
            the disk is the cause where it has no room at all.
        path: what was written, or a folder around it.
    """
    place = path.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    while not place.is_mount():
        place = place.parent
    if isinstance(error, OSError) and error.errno == errno.EDQUOT:
        return f"there is no quota left on the disk mounted at {place}"
    if error.errno == errno.ENOSPC if isinstance(error, OSError) else free < _NO_ROOM:
        return f"the disk mounted at {place} is full ({free / 1e6:.1f} MB free)"
    return ""
