"""Folders through a pipe, to and from the inside of a workspace (`guest_workspace_files.py`).

What comes out of a workspace is data: names are checked, only regular files and folders are made, and everything is
counted before it is written.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from pathlib import Path
from typing import BinaryIO

from contrib.workspaces.contract import WorkspaceFileError
from contrib.workspaces.guest.guest_workspace_files import END, ENTRY, FILE, FOLDER, HARD_LINK, LINK, OBJECT, SPECIAL

_CHUNK = 2**18
_MAX_PATH = 4096


def send_tree(source: Path, pipe: int, max_bytes: int) -> None:
    """Write the entries of a folder into a pipe. Blocks; call it in a thread."""
    if not source.is_dir():
        raise WorkspaceFileError(f"{source} is not a folder of this machine")
    left = max_bytes
    for base, folders, names in os.walk(source):
        for name in sorted((*folders, *names)):
            path = Path(base, name)
            info = path.lstat()
            encoded = os.fsencode(path.relative_to(source))
            left -= info.st_size if stat.S_ISREG(info.st_mode) else 0
            if left < 0:
                raise WorkspaceFileError(f"{source} has more than {max_bytes} bytes, the limit transfer_bytes")
            if stat.S_ISDIR(info.st_mode):
                _write(pipe, ENTRY.pack(FOLDER, len(encoded), stat.S_IMODE(info.st_mode), 0) + encoded)
            elif stat.S_ISLNK(info.st_mode):
                target = os.fsencode(os.readlink(path))
                _write(pipe, ENTRY.pack(LINK, len(encoded), 0, len(target)) + encoded + target)
            elif stat.S_ISREG(info.st_mode):
                _send_file(
                    path, pipe, ENTRY.pack(FILE, len(encoded), stat.S_IMODE(info.st_mode), info.st_size) + encoded
                )
            else:
                raise WorkspaceFileError(f"{path} is not a regular file, a folder or a link")
    _write(pipe, ENTRY.pack(END, 0, 0, 0))


def receive_tree(pipe: int, target: Path, max_bytes: int, *, skip: bool) -> tuple[str, ...] | None:
    """Read entries from a pipe into a new folder; return those left out, or None if the pipe ended too early.

    Blocks; call it in a thread. After an exception or None, the folder is gone.
    """
    try:
        target.mkdir()
    except OSError as error:
        raise WorkspaceFileError(f"the folder {target} cannot be made: {error.strerror}") from None
    whole = False
    try:
        with os.fdopen(pipe, "rb", closefd=False) as source:
            skipped: list[str] = []
            left = max_bytes
            while len(header := source.read(ENTRY.size)) == ENTRY.size:
                kind, length, mode, size = ENTRY.unpack(header)
                if kind == END:
                    whole = True
                    return tuple(skipped)
                path = _checked(source.read(length))
                if kind == FOLDER:
                    (target / path).mkdir()
                elif kind == FILE:
                    left -= size
                    if left < 0:
                        raise WorkspaceFileError(f"the files have more than {max_bytes} bytes")
                    if not _receive_file(source, target / path, size, 0o755 if mode & 0o100 else 0o644):
                        return None
                elif kind in (LINK, SPECIAL) and skip:
                    skipped.append(path)
                else:
                    what = "a link" if kind == LINK else "a special file"
                    raise WorkspaceFileError(f"{path!r} is {what}, and only files and folders are copied out")
            return None
    except OSError as error:
        raise WorkspaceFileError(f"the files cannot be written to {target}: {error.strerror}") from error
    finally:
        if not whole:
            shutil.rmtree(target, ignore_errors=True)


def receive_archive(pipe: int, target: BinaryIO, max_bytes: int) -> bool:
    """Write what `pack` sends as a tar; return whether it was whole. Special files are left out. Blocks."""
    kinds = {FILE: tarfile.REGTYPE, FOLDER: tarfile.DIRTYPE, LINK: tarfile.SYMTYPE, HARD_LINK: tarfile.LNKTYPE}
    left = max_bytes
    try:
        with os.fdopen(pipe, "rb", closefd=False) as source:
            while len(header := source.read(OBJECT.size)) == OBJECT.size:
                kind, length, mode, size, uid, gid, time = OBJECT.unpack(header)
                if kind == END:
                    target.write(bytes(2 * tarfile.BLOCKSIZE))
                    return True
                member = tarfile.TarInfo(_checked(source.read(length)))
                if kind == SPECIAL:
                    continue
                left -= size
                if left < 0 or (kind != FILE and size > _MAX_PATH):
                    raise WorkspaceFileError(f"the files have more than {max_bytes} bytes")
                member.type, member.mode, member.uid, member.gid, member.mtime = kinds[kind], mode, uid, gid, time / 1e9
                if kind == FILE:
                    member.size = size
                else:
                    member.linkname = os.fsdecode(source.read(size))
                target.write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
                if kind == FILE and not _copy_padded(source, target, size):
                    return False
            return False
    except (OSError, KeyError, ValueError) as error:
        raise WorkspaceFileError(f"the files of the workspace cannot be written: {error}") from error


def _copy_padded(source: BinaryIO, target: BinaryIO, size: int) -> bool:
    padding = -size % tarfile.BLOCKSIZE
    while size:
        chunk = source.read(min(size, _CHUNK))
        if not chunk:
            return False
        target.write(chunk)
        size -= len(chunk)
    target.write(bytes(padding))
    return True


def _checked(encoded: bytes) -> str:
    path = os.fsdecode(encoded)
    parts = path.split("/")
    if len(encoded) > _MAX_PATH or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise WorkspaceFileError(f"{path[:80]!r} is no path inside a folder")
    return path


def _receive_file(source: object, path: Path, size: int, mode: int) -> bool:
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        while size:
            chunk = source.read(min(size, _CHUNK))  # type: ignore[attr-defined]
            if not chunk:
                return False
            _write(target, chunk)
            size -= len(chunk)
    finally:
        os.close(target)
    return True


def _send_file(path: Path, pipe: int, header: bytes) -> None:
    source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        left = os.fstat(source).st_size
        if left != ENTRY.unpack_from(header)[3]:
            raise WorkspaceFileError(f"{path} changed while it was copied")
        _write(pipe, header)
        while left:
            chunk = os.read(source, min(left, _CHUNK))
            if not chunk:
                raise WorkspaceFileError(f"{path} changed while it was copied")
            _write(pipe, chunk)
            left -= len(chunk)
    finally:
        os.close(source)


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
