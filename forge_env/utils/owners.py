"""Checks who can change a file: only this user and root may, as in ssh and git.

A file that names code is as dangerous as that code. A file that another user has placed in a folder above the working
directory, or in a shared folder, must not run code as this user.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_MAX_LINKS = 40  # as in the kernel


def path_problem(path: Path, *, below: Path) -> str:
    """Return how others can change a file, as "/a/b belongs to the user 'bob'"; "" if they cannot.

    This checks the folder `below`, everything from there to the file, and all folders on the way of links. What does
    not exist is not a problem.

    Args:
        path: an absolute path, which need not exist.
        below: a folder above it, without links in its path.
    """
    for location, info in _way(path, below):
        if problem := stat_problem(info, is_folder=stat.S_ISDIR(info.st_mode)):
            return f"{location} {problem}"
    return ""


def stat_problem(info: os.stat_result, *, is_folder: bool = False) -> str:
    """Return how others can change what `info` describes, as "belongs to the user 'bob'"; "" if they cannot.

    Args:
        is_folder: in a folder with the sticky bit, others may write: they cannot replace the files of this user.
    """
    if info.st_uid not in _trusted_ids():
        return f"belongs to the user {_name(pwd.getpwuid, info.st_uid)}"
    if stat.S_ISLNK(info.st_mode) or (is_folder and info.st_mode & stat.S_ISVTX):
        return ""
    if info.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if info.st_mode & stat.S_IWGRP and not _is_private_group(info.st_gid, info.st_uid):
        return f"can be written by the group {_name(grp.getgrgid, info.st_gid)}"
    return ""


def is_mine(info: os.stat_result) -> bool:
    """Whether what `info` describes belongs to this user; root's does not count."""
    return info.st_uid == os.geteuid()


def _trusted_ids() -> set[int]:
    """Return the ids of this user and root; for root, also of the user who called sudo."""
    caller = os.environ.get("SUDO_UID", "")
    more = {int(caller)} if os.geteuid() == 0 and caller.isascii() and caller.isdecimal() else set()
    return {0, os.geteuid(), *more}


def _way(path: Path, below: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every folder, link and file on the way from a folder to a file, links followed."""
    here = below
    parts = list(reversed(path.relative_to(below).parts))
    links = 0
    try:
        yield here, here.stat()
        while parts:
            part = parts.pop()
            if part == "..":
                here = here.parent
                continue
            entry = here / part
            info = entry.lstat()
            yield entry, info
            if not stat.S_ISLNK(info.st_mode):
                here = entry
                continue
            links += 1
            if links > _MAX_LINKS:
                return  # it cannot be opened either
            target = Path(os.readlink(entry))
            if target.is_absolute():
                here = Path(target.anchor)
            parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    except OSError:  # it does not exist, or cannot be read anyway
        return


def _is_private_group(group: int, owner: int) -> bool:
    """Whether only one user is in a group, or it is root's; many systems give each user a private group."""
    if group == 0:
        return True
    try:
        name, entry = pwd.getpwuid(owner).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


def _name(find: Callable[[int], Any], number: int) -> str:
    try:
        return repr(find(number)[0])
    except KeyError:
        return str(number)
