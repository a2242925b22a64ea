"""StoreFolder: the folder of a store in /dev/shm. It is removed when its maker ends, for any reason.

Its maker holds a lock on it. A small process, this file run as a script, waits at a pipe that the kernel closes when
the maker ends, and removes the folder. The actors of a run cannot do this, because Monarch has them killed at the same
moment. If that process is killed too, the next run removes the folders that are not locked.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
OUTSIDE = ".outside"
_PREFIX = "forge_env_weights_"
_NAME = re.compile(rf"{_PREFIX}\d+_[0-9a-f]{{8}}")
_PATIENCE_S = 10.0
_LONGEST_PATH = 4096


def new_path() -> Path:
    """A name for a folder of this process. The number is for people; the lock tells whether the maker is alive."""
    return SHARED_MEMORY / f"{_PREFIX}{os.getpid()}_{secrets.token_hex(4)}"


class StoreFolder:
    """Makes the folder, and holds its lock until `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        new_folder = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=path.parent))
        self._descriptor = os.open(new_folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        new_folder.rename(path)  # it gets its name after it is locked
        # In a session of its own, so that Ctrl-C at the terminal does not reach it.
        command = [sys.executable, "-I", "-S", __file__, str(path)]
        silent = subprocess.DEVNULL
        self._remover = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=silent, stderr=silent, start_new_session=True
        )

    def close(self) -> None:
        _remove_for_good(self._path)
        self._remover.kill()  # it has nothing left to do
        self._remover.communicate()
        os.close(self._descriptor)


def remove_folder(path: Path) -> None:
    """Remove the folder of a store, and the files beside it that a `*.outside` file in it names, one a line.

    Only files of this user are removed, and no link is followed: in a folder that all users share, a name does not tell
    who made the file.
    """
    try:
        descriptor = _open_own(path)
    except OSError:  # another user's, a link, or gone
        return
    try:
        for name in os.listdir(descriptor):
            if name.endswith(OUTSIDE):
                with suppress(OSError, ValueError):
                    for line in _read_own(name, descriptor).splitlines():
                        with suppress(OSError):
                            _remove_beside(path.parent, Path(line))
    finally:
        os.close(descriptor)
    shutil.rmtree(path, ignore_errors=True)


def remove_left_behind(root: Path) -> list[str]:
    """Remove the folders of this user in `root` that have dead makers; returns their names."""
    return [folder.name for folder in root.glob(f"{_PREFIX}*") if _NAME.fullmatch(folder.name) and _remove(folder)]


def is_own(path: Path) -> bool:
    """Whether there is a folder that this user has made."""
    try:
        os.close(_open_own(path))
    except OSError:
        return False
    return True


def _remove(folder: Path) -> bool:
    try:
        descriptor = _open_own(folder)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        remove_folder(folder)
        return not folder.exists()
    finally:
        os.close(descriptor)


def _open_own(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    info = os.fstat(descriptor)
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(descriptor)
        raise PermissionError(f"{folder} is not this user's alone")
    return descriptor


def _read_own(name: str, folder: int) -> str:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(descriptor) as file:
        info = os.fstat(descriptor)
        if info.st_uid != os.geteuid() or not stat.S_ISREG(info.st_mode):
            raise PermissionError(f"{name} is not this user's")
        return file.read(_LONGEST_PATH)


def _remove_beside(parent: Path, file: Path) -> None:
    """Remove a file of this user that lies directly in a folder; a file elsewhere stays."""
    if file.parent != parent or file.name in ("", ".", ".."):
        return
    info = file.lstat()
    if info.st_uid == os.geteuid() and stat.S_ISREG(info.st_mode):
        file.unlink()


def _remove_for_good(folder: Path) -> None:
    """Remove a folder that an actor may still write to for a moment."""
    remove_folder(folder)
    deadline = time.monotonic() + _PATIENCE_S
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
        remove_folder(folder)


if __name__ == "__main__":
    sys.stdin.read()  # until the maker has ended
    _remove_for_good(Path(sys.argv[1]))
