"""Disks that are full: which one it is, in words for a person."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


def full_disk(error: BaseException, path: Path) -> str:
    """Say which disk is full, as "the disk mounted at /data is full (0.0 MB free)"; "" where that is not the error.

    Args:
        error: that writing raised.
        path: what was written, or a folder around it.
    """
    if not isinstance(error, OSError) or error.errno not in _FULL:
        return ""
    place = path.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 1e6
    while not place.is_mount():
        place = place.parent
    what = "has no quota left" if error.errno == errno.EDQUOT else "is full"
    return f"the disk mounted at {place} {what} ({free:.1f} MB free)"
