"""The users of a workspace, from its own /etc/passwd and /etc/group. Standard library only.

Imported by `guest_workspace_init.py`, never by the host. The files are the workspace's: of any size, or no files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

_MAX_BYTES, _CHUNK = 2**20, 2**14
_MAX_ID = 2**16 - 1


class Refusal(Exception):
    """A request that the workspace cannot serve: the caller's mistake."""


@dataclass(frozen=True)
class User:
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    is_only_one: bool
    """Whether there is only this user, so that there is nothing to change to."""

    def become(self) -> None:
        """Raises OSError."""
        if self.is_only_one:
            return
        os.setgroups(list(self.groups))
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


def find(text: str, *, everybody: bool) -> User:
    """Return the user of "NAME", "NUMBER" or either with ":GROUP".

    Args: everybody: whether this workspace has all users; otherwise only root.
    """
    name, _, group = text.partition(":")
    name = name or "0"
    entries = [row for row in _rows("/etc/passwd", 7) if name in (row[0], row[2])]
    by_name = [row for row in entries if row[0] == name]
    row = next(iter(by_name or entries), None)
    if row is None and not name.isdecimal():
        raise Refusal(f"there is no user {name!r} in the workspace's /etc/passwd")
    uid = _number(row[2] if row else name)
    gid = _number(row[3]) if row else uid
    groups = tuple(_number(entry[2]) for entry in _rows("/etc/group", 4) if row and row[0] in entry[3].split(","))
    if group:
        gid, groups = _group(group), ()
    if not everybody and (uid, gid) != (0, 0):
        raise Refusal(
            f"the user {text!r} cannot be had: without root outside, a workspace has only the user root, "
            "so leave user out or run forge_env as root"
        )
    home = row[5] if row and row[5] else ("/root" if not uid else "/")
    return User(uid, gid, groups, home, not everybody)


def _group(text: str) -> int:
    entry = next((entry for entry in _rows("/etc/group", 4) if text in (entry[0], entry[2])), None)
    if entry is None and not text.isdecimal():
        raise Refusal(f"there is no group {text!r} in the workspace's /etc/group")
    return _number(entry[2] if entry else text)


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_ID:
        raise Refusal(f"the user or group id {text!r} is not between 0 and {_MAX_ID}")
    return int(text)


def _rows(path: str, columns: int) -> Iterator[list[str]]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    text = b""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        while len(text) < _MAX_BYTES and (chunk := os.read(fd, _CHUNK)):
            text += chunk
    finally:
        os.close(fd)
    for line in text.decode("utf-8", "replace").split("\n"):  # `splitlines` also cuts within names
        row = line.split(":")
        if len(row) == columns:
            yield row
