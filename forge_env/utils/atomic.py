"""Files that appear whole or not at all: small ones that several processes write, and exports.

An export is written to a hidden folder beside its target, which becomes the target at the end, or goes away.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from forge_env.core.errors import UserError

LOCK_SECONDS = 30.0


def replace_file(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace a file atomically, even if the process or the machine fails. Call it within `hold_lock`.

    `mode` are its permissions; None keeps those that it has.
    """
    temporary = path.with_name(f"{path.name}.new")  # one writer at a time
    temporary.unlink(missing_ok=True)  # from a killed writer, or a link that another user has made
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode or 0o666)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if mode is None and path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # a full disk has no room for half of it
        raise
    flush(path.parent)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(file: int | BinaryIO, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether an open file or folder was free, and is locked from now on, until its descriptors are closed."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file: a lock file beside it, which is removed afterwards."""
    lock = path.with_name(f"{path.name}.lock")
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with suppress(BlockingIOError):
            if (descriptor := _locked(lock, os.O_RDWR | os.O_CREAT)) is not None:
                break
        if time.monotonic() > deadline:
            raise UserError(f"another process has been writing {path} for {LOCK_SECONDS:g} s ({lock}): try again later")
        time.sleep(0.01)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, flags: int) -> int | None:
    """Open and lock a file or a folder; None if its last holder has removed it just now."""
    descriptor, is_held = -1, False
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        pass
    finally:
        if descriptor >= 0 and not is_held:
            os.close(descriptor)
    return descriptor if is_held else None


class Target:
    """A context manager: whatever is written into `path` is at `out` after `commit`, and nowhere without it.

    A process that is killed leaves the hidden folder; the next export to the same place removes it.

    Args:
        out: a file or a folder that does not exist yet, or an empty folder.
        name: of the target, for error messages; "" is the option --out.
    """

    def __init__(self, out: Path, *, name: str = "") -> None:
        self.out = out.expanduser().absolute()
        self._name = name or f"--out {out}"
        base = next(folder for folder in self.out.parents if folder.is_dir())
        self._staging = base / f".{self.out.name}.part"
        self._lock = -1
        self.path = self._staging / "out"
        """To be written: as a file, or as a folder that the writer creates."""

    def __enter__(self) -> Self:
        self._refuse_present()
        try:
            self._lock = self._lock_folder()
            for leftover in self._staging.iterdir():  # by an export that was killed
                shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()
        except OSError as error:
            raise UserError(f"{self._name} cannot be written: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)
        os.close(self._lock)

    def commit(self) -> None:
        """Move what was written to its place, once it is on the disk."""
        for path in [self.path, *(self.path.rglob("*") if self.path.is_dir() else ())]:
            flush(path)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self._refuse_present()
        if self.path.is_file() and self.out.is_dir():
            self.out.rmdir()  # it is empty
        os.rename(self.path, self.out)

    def _refuse_present(self) -> None:
        try:
            is_free = not os.path.lexists(self.out) or (self.out.is_dir() and not os.listdir(self.out))
        except OSError as error:
            raise UserError(f"{self._name} cannot be read: {error.strerror}") from None
        parent = next(folder for folder in self.out.parents if os.path.lexists(folder))
        if not parent.is_dir():
            raise UserError(f"{self._name} cannot be written: {parent} is no folder")
        if not is_free:
            what = "holds something already" if self.out.is_dir() else "exists already"
            raise UserError(f"{self._name} {what}: name a new one, or delete it first")

    def _lock_folder(self) -> int:
        while True:
            self._staging.mkdir(exist_ok=True)
            try:
                descriptor = _locked(self._staging, os.O_RDONLY | os.O_DIRECTORY)
            except BlockingIOError:
                raise UserError(f"another export is writing to {self._name}: wait for it") from None
            if descriptor is not None:
                return descriptor
