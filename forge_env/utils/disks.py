"""Full disks: an error message that names the disk."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

_FULL_BYTES = 2**20  # less free space counts as full


def full_disk(error: BaseException, path: Path) -> str:
    """Return a phrase such as "the disk mounted at /data is full (0.0 MB free)"; "" if the error has another cause.

    Args:
        error: the error of a write. Some libraries, such as torch, do not raise an OSError; the disk is then the cause
            if it has no free space.
        path: the written file, or a folder that contains it.
    """
    place = path.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    while not place.is_mount():
        place = place.parent
    if isinstance(error, OSError) and error.errno == errno.EDQUOT:
        return f"there is no quota left on the disk mounted at {place}"
    if error.errno == errno.ENOSPC if isinstance(error, OSError) else free < _FULL_BYTES:
        return f"the disk mounted at {place} is full ({free / 1e6:.1f} MB free)"
    return ""
