"""Where an export is written: a hidden folder beside its target, which becomes the target at the end, or goes away."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Self

from forge_env.core.errors import UserError


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
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
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
                descriptor = os.open(self._staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue  # another export has just ended
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(self._staging) and os.stat(self._staging).st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                raise UserError(f"another export is writing to {self._name}: wait for it") from None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
