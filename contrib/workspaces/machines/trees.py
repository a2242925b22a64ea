"""Folders through a pipe, to and from the inside of a workspace (`guest_workspace_files.py`).

What comes out of a workspace is data: names are checked, only regular files and folders are made, and everything is
counted before it is written.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from contrib.workspaces.contract import WorkspaceFileError
from contrib.workspaces.guest import guest_workspace_files as files
from contrib.workspaces.guest.guest_workspace_files import END, FILE, FOLDER, HARD_LINK, LINK, OBJECT, SPECIAL

_CHUNK = 2**18
_MAX_PATH = 4096
_TAR_KINDS = {FILE: tarfile.REGTYPE, FOLDER: tarfile.DIRTYPE, LINK: tarfile.SYMTYPE, HARD_LINK: tarfile.LNKTYPE}


class _Entry(NamedTuple):
    kind: bytes
    path: str
    mode: int
    size: int
    """Bytes of the content, which has yet to be read if it is a file's."""
    uid: int
    gid: int
    time: int
    target: str
    """Of a link."""


def send_tree(source: Path, pipe: int, max_bytes: int) -> None:
    """Write the entries of a folder into a pipe. Blocks; call it in a thread."""
    if not source.is_dir():
        raise WorkspaceFileError(f"{source} is not a folder of this machine")
    top, rest = source.resolve(), max_bytes
    for base, folders, names, fd in os.fwalk(top):
        for name in sorted((*folders, *names)):
            path, info = Path(base, name), os.stat(name, dir_fd=fd, follow_symlinks=False)
            rest -= info.st_size if stat.S_ISREG(info.st_mode) else 0
            if rest < 0:
                raise WorkspaceFileError(f"{source} has more than {max_bytes} bytes, the limit transfer_bytes")
            if not (stat.S_ISDIR(info.st_mode) or stat.S_ISLNK(info.st_mode) or stat.S_ISREG(info.st_mode)):
                raise WorkspaceFileError(f"{path} is not a regular file, a folder or a link")
            if not files.send_object(pipe, os.fsencode(path.relative_to(top)), name, fd, info):
                raise WorkspaceFileError(f"{path} changed while it was copied")
    files.send(pipe, files.LAST)


def receive_tree(pipe: int, target: Path, max_bytes: int, *, skip: bool) -> tuple[str, ...] | None:
    """Read entries from a pipe into a new folder; return those left out, or None if the pipe ended too early.

    Blocks; call it in a thread. After an exception or None, the folder is gone.
    """
    try:
        target.mkdir()
    except OSError as error:
        raise WorkspaceFileError(f"the folder {target} cannot be made: {error.strerror}") from None
    omissions: list[str] | None = None
    try:
        with os.fdopen(pipe, "rb", closefd=False) as source:
            links: list[str] = []
            for entry in _entries(source, max_bytes):
                if entry.kind == FOLDER:
                    (target / entry.path).mkdir()
                elif entry.kind == FILE:
                    _receive_file(source, target / entry.path, entry)
                elif skip:
                    links.append(entry.path)
                else:
                    what = "a link" if entry.kind == LINK else "a special file"
                    raise WorkspaceFileError(f"{entry.path!r} is {what}, and only files and folders are copied out")
            omissions = links
    except EOFError:
        pass
    except OSError as error:
        raise WorkspaceFileError(f"the files cannot be written to {target}: {error.strerror}") from error
    finally:
        if omissions is None:
            shutil.rmtree(target, ignore_errors=True)
    return None if omissions is None else tuple(omissions)


def receive_archive(pipe: int, target: BinaryIO, max_bytes: int) -> bool:
    """Write what `pack` sends as a tar; return whether it was whole. Special files are left out. Blocks."""
    try:
        with os.fdopen(pipe, "rb", closefd=False) as source:
            for entry in _entries(source, max_bytes):
                if entry.kind == SPECIAL:
                    continue
                member = tarfile.TarInfo(entry.path)
                member.type, member.mode, member.mtime = _TAR_KINDS[entry.kind], entry.mode, entry.time / 1e9
                member.uid, member.gid, member.linkname = entry.uid, entry.gid, entry.target
                member.size = entry.size if entry.kind == FILE else 0
                target.write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
                _copy(source, target, member.size)
                target.write(bytes(-member.size % tarfile.BLOCKSIZE))
        target.write(bytes(2 * tarfile.BLOCKSIZE))
        return True
    except EOFError:
        return False
    except (OSError, KeyError, ValueError) as error:
        raise WorkspaceFileError(f"the files of the workspace cannot be written: {error}") from error


def _entries(source: BinaryIO, max_bytes: int) -> Iterator[_Entry]:
    """Yield the entries up to the last one; the caller reads the content of each file. Raises EOFError before it."""
    rest = max_bytes
    while True:
        kind, length, mode, size, uid, gid, time = OBJECT.unpack(_read(source, OBJECT.size))
        if kind == END:
            return
        path = _check(_read(source, length))
        rest -= size
        if rest < 0 or (kind != FILE and size > _MAX_PATH):
            raise WorkspaceFileError(f"the files have more than {max_bytes} bytes")
        target = "" if kind == FILE else os.fsdecode(_read(source, size))
        yield _Entry(kind, path, mode, size, uid, gid, time, target)


def _read(source: BinaryIO, size: int) -> bytes:
    if len(data := source.read(size)) < size:
        raise EOFError
    return data


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    for start in range(0, size, _CHUNK):
        target.write(_read(source, min(_CHUNK, size - start)))


def _check(data: bytes) -> str:
    path = os.fsdecode(data)
    parts = path.split("/")
    if len(data) > _MAX_PATH or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise WorkspaceFileError(f"{path[:80]!r} is no path inside a folder")
    return path


def _receive_file(source: BinaryIO, path: Path, entry: _Entry) -> None:
    mode = 0o755 if entry.mode & 0o100 else 0o644
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)) as target:
        _copy(source, target, entry.size)
