"""Writes files into the working directory and reads them back. Standard library only.

Imported by `guest_snippet.py` and `guest_session.py`.

It runs inside the sandbox, so no path leads to the host. Untrusted code may have put symbolic links, FIFOs, devices or
sockets in the way: they are neither followed nor waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

HOME = "/tmp"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def put(path: str, source: int, offset: int = 0, size: int | None = None) -> None:
    """Write `size` bytes of `source`, all by default, to `path` atomically; missing folders are created."""
    with _folder(path, make=True) as (folder, name):
        new = f".{os.urandom(8).hex()}"
        target = os.open(new, _NEW, 0o644, dir_fd=folder)
        try:
            _copy(source, target, offset, os.fstat(source).st_size if size is None else offset + size)
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(new, dir_fd=folder)
            raise
        finally:
            os.close(target)


def get(path: str, target: int, max_bytes: int) -> None:
    """Write the regular file at `path` into the pipe `target`."""
    with _folder(path, make=False) as (folder, name):
        source = os.open(name, _OLD, dir_fd=folder)
        try:
            status = os.fstat(source)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, path)
            if status.st_size > max_bytes:
                raise OSError(errno.EFBIG, path)
            _copy(source, target, 0, status.st_size)
        finally:
            os.close(source)


@contextmanager
def _folder(path: str, *, make: bool) -> Iterator[tuple[int, str]]:
    *above, name = path.split("/")
    folder = os.open(HOME, _FOLDER)
    try:
        for part in above:
            if make:
                _make_folder(part, folder)
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder, name
    finally:
        os.close(folder)


def _make_folder(name: str, above: int) -> None:
    try:
        os.mkdir(name, dir_fd=above)
    except FileExistsError:
        pass


def _copy(source: int, target: int, offset: int, end: int) -> None:
    while offset < end:
        count = os.sendfile(target, source, offset, end - offset)
        if not count:
            return  # the file was truncated meanwhile
        offset += count
