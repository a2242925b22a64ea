"""Small files that several processes read and write: replaced atomically, by one writer at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forge_env.core.errors import UserError

LOCK_SECONDS = 30.0


def replace_file(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace a file atomically, even if the process or the machine fails. Call it within `hold_lock`.

    `mode` are its permissions; None keeps those that it has.
    """
    temporary = path.with_name(f"{path.name}.new")  # one writer at a time
    temporary.unlink(missing_ok=True)  # from a killed writer, or a link that another user has made
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode or 0o666)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if mode is None and path.exists():
            os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file: a lock file beside it, which is removed afterwards."""
    lock = path.with_name(f"{path.name}.lock")
    deadline = time.monotonic() + LOCK_SECONDS
    while (descriptor := _try_lock(lock)) is None:
        if time.monotonic() > deadline:
            raise UserError(f"another process has been writing {path} for {LOCK_SECONDS:g} s ({lock}): try again later")
        time.sleep(0.01)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _try_lock(lock: Path) -> int | None:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(lock).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass  # held by another process, or removed by its last holder just now
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
