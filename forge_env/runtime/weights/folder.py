"""The folder of a store in /dev/shm: its maker holds a lock on it for as long as it lives, and so it is never orphaned
for long: the next run removes the folders that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
OUTSIDE = ".outside"
_PREFIX = "forge_env_weights_"
_NAME = re.compile(rf"{_PREFIX}\d+_[0-9a-f]{{8}}")


def new_path() -> Path:
    """A name for a folder of this process. The number is for people: a lock says whether its maker is alive."""
    return SHARED_MEMORY / f"{_PREFIX}{os.getpid()}_{secrets.token_hex(4)}"


def make_folder(path: Path) -> int:
    """Make the folder; returns the descriptor that holds its lock. It has its name only once it is locked."""
    unnamed = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=path.parent))
    descriptor = os.open(unnamed, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.rename(path)
    return descriptor


def remove_folder(path: Path) -> None:
    """Remove the folder of a store, and the files outside of it that a `*.outside` file in it names."""
    for named in path.glob(f"*{OUTSIDE}"):
        with suppress(OSError):
            Path(named.read_text()).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def remove_left_behind(root: Path = SHARED_MEMORY) -> list[str]:
    """Remove the folders whose makers are dead; returns their names."""
    return [folder.name for folder in root.glob(f"{_PREFIX}*") if _NAME.fullmatch(folder.name) and _remove(folder)]


def _remove(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # another user's, or gone meanwhile
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
