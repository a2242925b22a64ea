"""What was changed in a workspace goes into a fresh one, by a fork of pid 1 on either side; or everything, out of it.

Imported by `guest_workspace_init.py`, never by the host. Standard library only.

A file with a status that has changed since the workspace was opened is sent whole. Of any other file only size and time
are sent: the receiver has the same file, or says that it has not.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import guest_workspace_files as files  # type: ignore[import-not-found]

_SAME = b"="
_MOST_TOLD, _LONGEST = 100, 4000


def send_changes(request: dict[str, Any], fds: list[int], user: Any) -> None:
    """Send everything but what is kept on the other side, and the names of changed files that are kept there."""
    since, rule, rest = request["since"], _Kept(request), request["max_bytes"]
    places: dict[tuple[int, int], bytes] = {}
    report: list[str] = []
    for path, name, fd, info in _entries(lambda path, info: rule.ends_at(path) and info.st_ctime_ns < since):
        is_folder, is_changed = stat.S_ISDIR(info.st_mode), info.st_ctime_ns >= since
        data = os.fsencode(path[1:])
        if rule(path):
            if info.st_ctime_ns >= request["opened"] and not is_folder and len(report) < _MOST_TOLD:
                report.append(path[:_LONGEST])
        elif is_folder or is_changed:
            if len(data) > _LONGEST:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), "/")
            rest -= info.st_size if stat.S_ISREG(info.st_mode) else 0
            if rest < 0:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), "/")
            files.send_object(fds[0], data, name, fd, info, places)
        else:
            entry = files.OBJECT.pack(_SAME, len(data), 0, info.st_size, 0, 0, files.time_of(info))
            files.send(fds[0], entry + data)
    files.send(fds[0], files.LAST)
    files.send(fds[1], json.dumps(report).encode())


def take_changes(request: dict[str, Any], fds: list[int], user: Any) -> None:
    """Make the files here those that are sent, except the kept ones; tell whether a file was missing."""
    rule, names = _Kept(request), set()
    while True:
        kind, length, mode, size, uid, gid, time = files.OBJECT.unpack(files.receive(fds[0], files.OBJECT.size))
        if kind == files.END:
            break
        path = _check(os.fsdecode(files.receive(fds[0], length)), rule)
        names.add(path)
        if kind == _SAME:
            if not _is_same(path, size, time):
                files.send(fds[1], b"missing")
                return
        elif kind != files.SPECIAL:
            content = files.receive(fds[0], size) if kind in (files.LINK, files.HARD_LINK) else b""
            if kind == files.HARD_LINK:
                content = os.fsencode(_check(os.fsdecode(content), rule))
            _make(kind, path, content, fds[0], size, SimpleNamespace(uid=uid, gid=gid), mode, time)
    for path, _, _, info in _entries(lambda path, info: rule.ends_at(path) or (path not in names and not rule(path))):
        if path not in names and not rule(path):
            _remove(path, info)


def pack(request: dict[str, Any], fds: list[int], user: Any) -> None:
    """Send all that is below /, with owners, times and hard links, and without what is mounted there."""
    rest, places = request["max_files"], dict[tuple[int, int], bytes]()
    for path, name, fd, info in _entries(lambda path, info: False, with_mount_points=True):
        rest -= 1
        if rest < 0:
            raise OSError(errno.EMFILE, "too many files", "/")
        files.send_object(fds[0], os.fsencode(path[1:]), name, fd, info, places)
    files.send(fds[0], files.LAST)


WORK: dict[str, Callable[[dict[str, Any], list[int], Any], None]] = {
    "send": send_changes,
    "take": take_changes,
    "pack": pack,
}


class _Kept:
    """Which paths stay as they are: those that a pattern of `keep` matches, except those of `work`."""

    def __init__(self, request: dict[str, Any]) -> None:
        work = [folder.rstrip("/") for folder in request["work"]]
        inside = [pattern for pattern in request["keep"] if any(pattern.startswith(f"{folder}/") for folder in work)]
        self._inside, self._all = _matcher(inside), _matcher(request["keep"])
        self._work = [f"{folder}/" for folder in work]

    def __call__(self, path: str) -> bool:
        is_of_work = any(f"{path}/".startswith(folder) for folder in self._work)
        return bool(self._inside(path) if is_of_work else self._all(path))

    def ends_at(self, path: str) -> bool:
        return self(path) and not any(folder.startswith(f"{path}/") for folder in self._work)


def _matcher(patterns: list[str]) -> Callable[[str], Any]:
    """Return whether a pattern matches a path or a folder above it; "*" matches within a part of the path."""
    texts = [re.escape(pattern).replace(r"\*", "[^/]*") for pattern in patterns]
    return re.compile(f"(?:{'|'.join(texts)})(?:/.*)?" if texts else "(?!)", re.DOTALL).fullmatch


def _entries(
    is_closed: Callable[[str, os.stat_result], bool], *, with_mount_points: bool = False
) -> Iterator[tuple[str, str, int, os.stat_result]]:
    """Yield path, name, folder and status of all that is below /, without mounts and what is in closed folders.

    Args: with_mount_points: yield folders on which something is mounted, too.
    """
    device, mounts = os.lstat("/").st_dev, _mounts()
    try:
        for base, folders, names, fd in os.fwalk("/", follow_symlinks=False):
            for name in sorted((*folders, *names)):
                path, info = os.path.join(base, name), os.stat(name, dir_fd=fd, follow_symlinks=False)
                is_folder = stat.S_ISDIR(info.st_mode)
                is_mount = path in mounts or (is_folder and info.st_dev != device)
                if is_folder and (is_mount or is_closed(path, info)):
                    folders.remove(name)
                if is_mount and not (is_folder and with_mount_points):
                    continue
                yield path, name, fd, info
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "folders too deep", "/") from None


def _mounts() -> set[str]:
    """Paths at which something is mounted. With Docker these are files, such as /etc/hosts: nobody can replace them."""
    with open("/proc/self/mountinfo", "rb") as file:
        places = [line.split()[4] for line in file]
    return {os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), place)) for place in places}


def _check(name: str, rule: _Kept) -> str:
    """Return an absolute path. Raises OSError if it is kept, has ".." in it, or leads through a link."""
    path = f"/{name}"
    if os.path.normpath(path) != path or rule(path) or not _is_real(os.path.dirname(path)):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    return path


@functools.lru_cache(maxsize=1)
def _is_real(folder: str) -> bool:
    """Whether no part of a path is a link. Entries of one folder follow each other, and nothing else changes files."""
    return os.path.realpath(folder) == folder


def _is_same(path: str, size: int, time: int) -> bool:
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISDIR(info.st_mode) and (info.st_size, files.time_of(info)) == (size, time)


def _make(kind: bytes, path: str, content: bytes, source: int, size: int, owner: Any, mode: int, time: int) -> None:
    """Make what an entry says. Args: content: of a link; that of a file comes from `source`."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    info = os.lstat(path) if os.path.lexists(path) else None
    if info is not None and not (kind == files.FOLDER and stat.S_ISDIR(info.st_mode)):
        _remove(path, info)
        info = None
    if kind == files.HARD_LINK:
        os.link(content, os.fsencode(path), follow_symlinks=False)
        return
    if kind == files.FILE:
        files.write(path, source, size, 0o600, SimpleNamespace(uid=-1, gid=-1))
    elif kind == files.LINK:
        os.symlink(content, os.fsencode(path))
    elif info is None:
        os.mkdir(path)
    try:
        os.chown(path, owner.uid, owner.gid, follow_symlinks=False)
    except OSError as failure:
        if failure.errno not in (errno.EINVAL, errno.EPERM):  # a user that this workspace does not have
            raise
    if kind != files.LINK:
        os.chmod(path, mode)
    os.utime(path, ns=(time, time), follow_symlinks=False)


def _remove(path: str, info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        shutil.rmtree(path)
    else:
        os.unlink(path)
