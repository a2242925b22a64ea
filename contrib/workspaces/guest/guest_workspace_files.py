"""Files of a workspace, written and read by a fork of its pid 1. Standard library only.

Imported by `guest_workspace_init.py`; the host's side, `contrib/workspaces/machines/trees.py`, sends its entries by it,
too. It runs inside, so no path and no link leads out. Code in the workspace may have put links, FIFOs and devices in
the way: they are neither followed at the end of a path nor waited for.

A tree goes through a pipe as entries: kind, length of the path, mode, size, owner, group, time in nanoseconds; the
path; the content. A link's content is its target.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Callable
from fnmatch import translate
from typing import Any

OBJECT = struct.Struct("<cHIQIIq")
FILE, FOLDER, LINK, HARD_LINK, SPECIAL, END = b"f", b"d", b"l", b"h", b"s", b"e"
LAST = OBJECT.pack(END, 0, 0, 0, 0, 0, 0)
_CHUNK, _FAR, _MAX_PATH = 2**18, 2**62, 4096


def put(request: dict[str, Any], fds: list[int], user: Any) -> None:
    path = os.path.join(request["workdir"], request["path"])
    _make_folders(os.path.dirname(path), user)
    write(path, fds[0], os.fstat(fds[0]).st_size, request["mode"], user)


def get(request: dict[str, Any], fds: list[int], user: Any) -> None:
    path = os.path.join(request["workdir"], request["path"])
    source = _open_regular(path)
    count = 0
    while chunk := os.read(source, _CHUNK):
        count += len(chunk)
        if count > request["max_bytes"]:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        send(fds[0], chunk)


def put_tree(request: dict[str, Any], fds: list[int], user: Any) -> None:
    top = os.path.join(request["workdir"], request["path"])
    _make_folders(top, user)
    while True:
        kind, length, mode, size, *_ = OBJECT.unpack(receive(fds[0], OBJECT.size))
        if kind == END:
            return
        path = os.path.join(top, os.fsdecode(receive(fds[0], length)))
        if kind == FILE:
            write(path, fds[0], size, mode, user)
            continue
        if kind == LINK:
            target = receive(fds[0], size)
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(target, os.fsencode(path))
        elif os.path.isdir(path):
            continue  # as it is; many images have a link /bin to a folder
        else:
            if os.path.lexists(path):
                os.unlink(path)
            os.mkdir(path)
            os.chmod(path, mode)
        os.chown(path, user.uid, user.gid, follow_symlinks=False)


def get_tree(request: dict[str, Any], fds: list[int], user: Any) -> None:
    top = os.path.join(request["workdir"], request["path"])
    rest = request["max_files"]
    is_out = _matcher(request["exclude"])
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for base, folders, names, fd in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
            below = os.path.join(base, "")[2:]
            folders[:] = [name for name in folders if not is_out(below + name)]
            names = [name for name in names if not is_out(below + name)]
            rest -= len(folders) + len(names)
            if rest < 0:
                raise OSError(errno.EMFILE, "too many files", top)
            for name in sorted((*folders, *names)):
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                send_object(fds[0], os.fsencode(below + name), name, fd, info)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "folders too deep", top) from None
    send(fds[0], LAST)


def _matcher(patterns: list[str]) -> Callable[[str], Any]:
    """Return whether a path is excluded: it, or its end from any "/" on, matches a pattern."""
    names = [pattern.removeprefix("./").strip("/") for pattern in patterns]
    if not any(names):
        return lambda path: False
    return re.compile("|".join(f"(?:.*/)?(?:{translate(pattern)})" for pattern in names if pattern), re.DOTALL).match


def settle(request: dict[str, Any], fds: list[int], user: Any) -> None:
    """Remove what is not a file where a container engine, outside, reads one: it would wait for a pipe for ever."""
    for path in ("/etc/passwd", "/etc/group"):
        try:
            if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
                os.unlink(path)
        except FileNotFoundError:
            pass


WORK: dict[str, Callable[[dict[str, Any], list[int], Any], None]] = {
    "put": put,
    "get": get,
    "put_tree": put_tree,
    "get_tree": get_tree,
    "settle": settle,
}


def send_object(
    target: int,
    path: bytes,
    name: str,
    folder: int,
    info: os.stat_result,
    places: dict[tuple[int, int], bytes] | None = None,
) -> bool:
    """Send an entry; return whether it is as `info` says: a file that was cut meanwhile is filled up with zeros.

    Args: places: of files that were sent: a further hard link to one is sent as a link. None: as a file.
    """
    if len(path) > _MAX_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fsdecode(path[:100]))
    kind, content = SPECIAL, b""
    if stat.S_ISDIR(info.st_mode):
        kind = FOLDER
    elif stat.S_ISLNK(info.st_mode):
        kind, content = LINK, os.fsencode(os.readlink(name, dir_fd=folder))
    elif stat.S_ISREG(info.st_mode):
        first = path
        if places is not None and info.st_nlink > 1:
            first = places.setdefault((info.st_dev, info.st_ino), path)
        kind, content = (FILE, b"") if first == path else (HARD_LINK, first)
    size = info.st_size if kind == FILE else len(content)
    mode, owner = stat.S_IMODE(info.st_mode), (info.st_uid, info.st_gid)
    send(target, OBJECT.pack(kind, len(path), mode, size, *owner, time_of(info)) + path + content)
    if kind != FILE:
        return True
    source = _open_regular(name, folder)
    try:
        return _send_content(target, source, size)
    finally:
        os.close(source)


def time_of(info: os.stat_result) -> int:
    """Return the time of a file in nanoseconds, as an entry can hold it: any time can be set."""
    return min(max(info.st_mtime_ns, -_FAR), _FAR)


def _send_content(target: int, source: int, size: int) -> bool:
    is_whole = True
    while size:
        chunk = os.read(source, min(size, _CHUNK))
        is_whole = is_whole and bool(chunk)
        chunk = chunk or bytes(min(size, _CHUNK))
        send(target, chunk)
        size -= len(chunk)
    return is_whole


def _open_regular(path: str, folder: int | None = None) -> int:
    source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    mode = os.fstat(source).st_mode
    if not stat.S_ISREG(mode):
        os.close(source)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, os.strerror(code), path)
    return source


def _make_folders(path: str, user: Any) -> None:
    missing = []
    while path not in ("", "/") and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.mkdir(folder)
        os.chown(folder, user.uid, user.gid)


def write(path: str, source: int, size: int, mode: int, user: Any) -> None:
    """Write `size` bytes of a descriptor to a file, which takes its place when it is whole."""
    folder, name = os.path.split(path)
    if not name or (os.path.isdir(path) and not os.path.islink(path)):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    new = os.path.join(folder, f".{os.urandom(8).hex()}")
    target = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while size:
            chunk = os.read(source, min(size, _CHUNK))
            if not chunk:
                raise OSError(errno.EPIPE, "the owner stopped sending", path)
            send(target, chunk)
            size -= len(chunk)
        os.fchown(target, user.uid, user.gid)
        os.fchmod(target, mode)
        os.replace(new, path)
    except OSError as failure:
        os.unlink(new)
        raise OSError(failure.errno, failure.strerror, path) from failure
    finally:
        os.close(target)


def send(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def receive(source: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(source, size)
        if not part:
            raise OSError(errno.EPIPE, "the owner stopped sending")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
