"""Whose files are used: those of this user and of root that nobody else can write to, as ssh and git have it.

A file that names code is as good as that code. One that another user has left in a folder above the working directory,
or in a folder that all users share, must not run as this user.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

_MOST_LINKS = 40  # as the kernel


def problem_of(path: Path, *, below: Path) -> str:
    """Return why a file is not this user's alone, as "/a/b belongs to the user 'bob'"; "" where nothing is wrong.

    Looked at are the folder `below`, everything from there to the file, and the links on the way with all that they
    lead through. Whatever is not there is no problem.

    Args:
        path: an absolute path, which need not exist.
        below: a folder above it, without links in its path.
    """
    for place, info in _way(path, below):
        if problem := problem_with(info, is_folder=stat.S_ISDIR(info.st_mode)):
            return f"{place} {problem}"
    return ""


def problem_with(info: os.stat_result, *, is_folder: bool = False) -> str:
    """Return why what `stat` describes is not this user's alone, as "belongs to the user 'bob'"; "" where it is.

    Args:
        is_folder: others may then write where the sticky bit keeps them from replacing what is not theirs.
    """
    if info.st_uid not in _trusted():
        return f"belongs to the user {_user(info.st_uid)}"
    if stat.S_ISLNK(info.st_mode) or (is_folder and info.st_mode & stat.S_ISVTX):
        return ""
    if info.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if info.st_mode & stat.S_IWGRP and not _is_private_group(info.st_gid, info.st_uid):
        return f"can be written by the group {_group(info.st_gid)}"
    return ""


def is_mine(info: os.stat_result) -> bool:
    """Whether what `stat` describes belongs to this user, and not even to root."""
    return info.st_uid == os.geteuid()


def _trusted() -> set[int]:
    """This user and root; for root, the user who called sudo as well."""
    caller = os.environ.get("SUDO_UID", "")
    more = {int(caller)} if os.geteuid() == 0 and caller.isascii() and caller.isdecimal() else set()
    return {0, os.geteuid(), *more}


def _way(path: Path, below: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """What is passed from a folder to a file, the links and what they lead through among it."""
    here = below
    left = list(reversed(path.relative_to(below).parts))
    links = 0
    try:
        yield here, here.stat()
        while left:
            part = left.pop()
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
            if links > _MOST_LINKS:
                return  # it cannot be opened either
            target = Path(os.readlink(entry))
            if target.is_absolute():
                here = Path(target.anchor)
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    except OSError:  # not there, or not to be looked at, and so not to be read
        return


def _is_private_group(group: int, owner: int) -> bool:
    """Whether a group is that of one user alone, which many systems give to each user, or root's."""
    if group == 0:
        return True
    try:
        name, entry = pwd.getpwuid(owner).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


def _user(number: int) -> str:
    try:
        return repr(pwd.getpwuid(number).pw_name)
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return repr(grp.getgrgid(number).gr_name)
    except KeyError:
        return str(number)
