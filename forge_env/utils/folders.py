"""Folders of results, of the cache and of temporary files, and disks that are full."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forge_env.utils.owners import stat_problem


def make_folders(path: Path) -> list[Path]:
    """Make a folder with its parents; returns those that were not there before, the innermost first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders from the innermost on, until one is not empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def cache_folder(name: str) -> Path | None:
    """A folder in the user's cache; None if there is no home that can be written and belongs to this user.

    What is in it is believed, or executed. So it must not be another user's, for example below a home that sudo kept.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forge_env" / name
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user's home is unknown
        return None
    return folder if os.access(folder, os.W_OK) and not stat_problem(folder.stat(), is_folder=True) else None


@contextmanager
def temporary_files_in(folder: str) -> Iterator[None]:
    """Let this process, and every process that it starts meanwhile, keep temporary files in an existing folder."""
    tempdir, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        tempfile.tempdir = tempdir
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable


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


_OF_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def disk_problem(error: BaseException) -> str:
    """A sentence for an error that is of a path or a disk, as this machine has it; "" if it may be a bug of ours."""
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return "a path begins with ~ and the name of no user here: write the whole path"
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):
        return f"{error}, which leads to itself: name another path"
    if not isinstance(error, OSError) or error.errno not in (*_OF_DISKS, *(_OF_PATHS if error.filename else ())):
        return ""
    return f"{error.filename or 'a file'} cannot be read or written: {error.strerror}"
