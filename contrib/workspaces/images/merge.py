"""Makes the root file system of an image from its unpacked layers, by hard links: layers share their files with images.

The folders are the cache's own, and nobody else changes them meanwhile. No link in them is ever followed.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat

_WHITEOUT, _OPAQUE, _IMPLIED = ".wh.", ".wh..wh..opq", ".wh..wh.implied"  # as guest_unpack.py leaves them


def add_layer(layer: str, root: str) -> None:
    """Put the files of a layer over a root file system's, and take away the files that its whiteouts name.

    Args:
        layer: as `guest_unpack.py` leaves it. It may be linked to, and must not be changed later.
    """
    with os.scandir(layer) as entries:
        listed = list(entries)
    # Whiteouts first: they speak of the layers below, never of this one.
    for entry in listed:
        if entry.name == _OPAQUE:
            for name in os.listdir(root):
                _remove(f"{root}/{name}")
        elif entry.name.startswith(_WHITEOUT) and entry.name != _IMPLIED:
            _remove(f"{root}/{entry.name[len(_WHITEOUT) :]}")
    for entry in listed:
        if entry.name.startswith(_WHITEOUT):
            continue
        target = f"{root}/{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            _link(entry.path, target)
        else:
            is_new = _make_folder(target)
            add_layer(entry.path, target)
            if is_new or not os.path.lexists(f"{entry.path}/{_IMPLIED}"):
                copy_attributes(entry.path, target)


def copy_attributes(source: str, target: str) -> None:
    info = os.lstat(source)
    if os.geteuid() == 0:
        os.chown(target, info.st_uid, info.st_gid)
    os.chmod(target, stat.S_IMODE(info.st_mode))
    os.utime(target, ns=(info.st_mtime_ns, info.st_mtime_ns))


def _make_folder(path: str) -> bool:
    """Make a folder in the place of whatever else is there; return whether it is new."""
    try:
        os.mkdir(path, 0o755)
        return True
    except FileExistsError:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return False
    os.unlink(path)
    os.mkdir(path, 0o755)
    return True


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        _remove(target)
        _link(source, target)
    except OSError as failure:
        if failure.errno != errno.EMLINK:
            raise
        shutil.copy2(source, target, follow_symlinks=False)
        if os.geteuid() == 0:
            info = os.lstat(source)
            os.lchown(target, info.st_uid, info.st_gid)
            os.chmod(target, stat.S_IMODE(info.st_mode))


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        shutil.rmtree(path)
