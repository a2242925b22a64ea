"""Mounts that have no place yet: detached copies, id-mapped ones, and the overlay of a workspace.

Standard library only; imported by `guest_workspace.py`, never by the host.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import guest_kernel as kernel  # type: ignore[import-not-found]

READ_ONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8
_MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x1000, 0x4000, 1 << 18, 2
_OPEN_TREE_CLONE, _AT_EMPTY_PATH, _AT_RECURSIVE, _MOVE_EMPTY_PATH = 1, 0x1000, 0x8000, 0x4
_ATTR_IDMAP = 0x100000
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, what: str, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def copy_tree(path: str, *, with_mounts: bool = False) -> int:
    """Return the descriptor of a detached copy of the mount at a path. Raises OSError."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if with_mounts else 0)
    return _call(_SYS_OPEN_TREE, f"open_tree {path}", -100, path.encode(), flags)


def attach(tree: int, target: str) -> None:
    """Mount a detached tree at a path, and close its descriptor. Raises OSError."""
    try:
        _call(_SYS_MOVE_MOUNT, f"move_mount {target}", tree, b"", -100, target.encode(), _MOVE_EMPTY_PATH)
    finally:
        os.close(tree)


def set_attributes(tree: int, attributes: int, *, ids_of: int | None = None) -> None:
    """Set attributes of a detached mount, without those below it.

    Args: ids_of: a user namespace; its root then owns what root owns in the mount, and so on for all users.
    """
    flags = attributes | (_ATTR_IDMAP if ids_of is not None else 0)
    fields = (ctypes.c_uint64 * 4)(flags, 0, 0, ids_of or 0)
    what = "mount_setattr" if ids_of is None else "mount_setattr with mapped ids"
    _call(_SYS_MOUNT_SETATTR, what, tree, b"", _AT_EMPTY_PATH, fields, ctypes.sizeof(fields))


def show_read_only(path: str) -> None:
    """Show a folder read-only, by a mount of its own over it."""
    tree = copy_tree(path)
    set_attributes(tree, READ_ONLY | NOSUID | NODEV | NOEXEC)
    attach(tree, path)


def bind(source: str, target: str) -> None:
    kernel.mount(source, target, None, _MS_BIND)


def make_private() -> None:
    """Keep what is mounted in this mount namespace to itself."""
    kernel.mount("none", "/", None, _MS_REC | _MS_PRIVATE)


def mount_overlay(lower: Sequence[str], target: str, *, is_privileged: bool) -> None:
    """Mount an overlay from folders of the working directory: `lower`, the topmost first, "upper" and "work".

    The names are relative and short, since all options together have one page.
    """
    options = f"lowerdir={':'.join(lower)},upperdir=upper,workdir=work,volatile"
    if not is_privileged:
        options += ",userxattr"  # without it, renames in an ordinary user's overlay fail with EIO
    kernel.mount("overlay", target, "overlay", NOSUID | NODEV, options)


def enter_root_here() -> None:
    """Make the working directory the root of this mount namespace, and drop the old root."""
    kernel.pivot_root(b".", b".")
    unmount(".")
    os.chdir("/")


def unmount(path: str) -> None:
    if _libc.umount2(path.encode(), _MNT_DETACH) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"umount {path}: {os.strerror(code)}")
