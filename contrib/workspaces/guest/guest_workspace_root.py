"""The file system of a workspace: an image below, what it writes above, and its own /dev and /proc.

Standard library only; imported by `guest_workspace.py`, never by the host. The server and every process that prepares a
workspace have the mount namespace of the server, in which a small file system covers /sys: nothing of it is on disk.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from typing import Any

import guest_kernel as kernel  # type: ignore[import-not-found]
import guest_mounts as mounts  # type: ignore[import-not-found]

_BASE, _DEV, _LAYERS, _BOX = "/sys", "/sys/dev", "/sys/layers", "/sys/box"
_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_DEV_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
              "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"}  # fmt: skip
_HIDDEN = ("kcore", "keys", "timer_list", "sched_debug", "latency_stats", "sysrq-trigger", "kmsg", "kallsyms")
_READ_ONLY = ("sys", "irq", "bus", "fs", "acpi", "scsi")
_TTY_GROUP = 5


def prepare(*, is_privileged: bool) -> None:
    """Cover /sys of this mount namespace, and make the /dev that all workspaces share, read-only."""
    if is_privileged and os.statvfs("/proc").f_flag & os.ST_RDONLY:  # as in some containers: id maps are written there
        kernel.mount("proc", "/proc", "proc", mounts.NOSUID | mounts.NODEV | mounts.NOEXEC)
    kernel.mount("tmpfs", _BASE, "tmpfs", mounts.NOSUID, "size=1m,mode=755")
    for folder in (_DEV, _LAYERS, _BOX):
        os.mkdir(folder)
    kernel.mount("tmpfs", _DEV, "tmpfs", mounts.NOSUID | mounts.NOEXEC, "size=64k,mode=755")
    for folder in ("pts", "shm"):
        os.mkdir(f"{_DEV}/{folder}")
    for name, (major, minor) in _NODES.items():
        path = f"{_DEV}/{name}"
        if is_privileged:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
            os.chmod(path, 0o666)
        else:
            os.close(os.open(path, os.O_CREAT))
            mounts.bind(f"/dev/{name}", path)
    for name, target in _DEV_LINKS.items():
        os.symlink(target, f"{_DEV}/{name}")
    with open(f"{_DEV}/apt.conf", "w") as file:  # for APT_CONFIG if root is the only user
        file.write('APT::Sandbox::User "root";\n')


def leave_namespaces() -> None:
    """Leave namespaces of the server ahead of an order. Raises OSError.

    Not its mount namespace: a copy of it would hold every layer that is mounted now.
    """
    kernel.unshare(kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET | kernel.NEWCGROUP)


def enter(
    order: dict[str, Any], user_namespace: int | None, first_id: int, send_upper: Callable[[int], None]
) -> list[socket.socket]:
    """Make this process, pid 1 of its namespace, enter the root of its workspace; return its listening sockets."""
    kernel.unshare(kernel.NEWNS)
    dev = mounts.copy_tree(_DEV, with_mounts=True)
    mounts.set_attributes(dev, mounts.READ_ONLY | mounts.NOSUID | mounts.NOEXEC)
    proc = _mount_root(order, user_namespace, first_id, send_upper)
    _mount_dev(dev, order, first_id)
    _mount_proc(proc, first_id)
    socket.sethostname("workspace")
    if not order["loopback"]:
        return []
    kernel.bring_up_loopback()
    return [socket.create_server(("127.0.0.1", port), backlog=128) for port in order["listeners"]]


def add_layer(number: int, upper: int) -> None:
    """Mount the file system of an ended workspace, so that others can be opened from it. Raises OSError."""
    os.mkdir(f"{_LAYERS}/{number}")
    mounts.attach(upper, f"{_LAYERS}/{number}")


def remove_layer(number: int) -> None:
    mounts.unmount(f"{_LAYERS}/{number}")
    os.rmdir(f"{_LAYERS}/{number}")


def _mount_root(
    order: dict[str, Any], user_namespace: int | None, first_id: int, send_upper: Callable[[int], None]
) -> int:
    """Enter the overlay; return the descriptor of a detached /proc."""
    image = mounts.copy_tree(order["image"])
    mounts.set_attributes(image, mounts.READ_ONLY | mounts.NOSUID | mounts.NODEV, ids_of=user_namespace)
    size = f"size={order['disk_bytes']},nr_inodes={order['files']},mode=755"
    kernel.mount("tmpfs", _BOX, "tmpfs", mounts.NOSUID | mounts.NODEV, size)
    os.chdir(_BOX)
    for folder in ("upper", "work", "root", "proc", "0"):
        os.mkdir(folder)
    mounts.attach(image, "0")
    lower = ["0"]
    for number, layer in enumerate(order["layers"], 1):
        os.symlink(f"{_LAYERS}/{layer}/upper", str(number))
        lower.insert(0, str(number))
    _copy_owner(order["layers"], first_id)
    mounts.mount_overlay(lower, "root", is_privileged=user_namespace is not None)
    send_upper(mounts.copy_tree("."))
    # A user namespace may mount a /proc only while it sees a complete one, and no link of the image may lead it astray.
    kernel.mount("proc", "proc", "proc", mounts.NOSUID | mounts.NODEV | mounts.NOEXEC)
    proc = mounts.copy_tree("proc")
    os.chdir("root")
    mounts.enter_root_here()
    return proc


def _copy_owner(layers: list[int], first_id: int) -> None:
    """Give the topmost folder of the overlay the owner and the mode of the root folder below it."""
    below = os.stat(f"{_LAYERS}/{layers[-1]}/upper" if layers else "0")
    try:
        os.chown("upper", below.st_uid, below.st_gid)
    except OSError as failure:
        if failure.errno != errno.EINVAL:  # a user that this workspace does not have
            raise
    os.chmod("upper", stat.S_IMODE(below.st_mode))


def _mount_dev(dev: int, order: dict[str, Any], first_id: int) -> None:
    _make_folder("/dev", first_id)
    mounts.attach(dev, "/dev")
    options = (
        f"newinstance,ptmxmode=0666,mode=0620,gid={first_id + _TTY_GROUP}" if first_id else "newinstance,ptmxmode=0666"
    )
    kernel.mount("devpts", "/dev/pts", "devpts", mounts.NOSUID | mounts.NOEXEC, options)
    size = f"size={order['memory_bytes'] // 2},nr_inodes={order['files']},mode=1777,uid={first_id},gid={first_id}"
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", mounts.NOSUID | mounts.NODEV, size)


def _mount_proc(proc: int, first_id: int) -> None:
    _make_folder("/proc", first_id)
    mounts.attach(proc, "/proc")
    _allow_low_ports()
    for name in _HIDDEN:
        if os.path.lexists(f"/proc/{name}"):
            mounts.bind("/dev/null", f"/proc/{name}")
    for name in _READ_ONLY:
        if os.path.isdir(f"/proc/{name}"):
            mounts.show_read_only(f"/proc/{name}")


def _make_folder(path: str, owner: int) -> None:
    """Make a folder that the image lacks. Raises OSError if something else, or a link, is in its place."""
    try:
        os.mkdir(path, 0o755)
        os.chown(path, owner, owner)
    except FileExistsError:
        if os.path.islink(path) or not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, f"{path} of the image is not a folder") from None


def _allow_low_ports() -> None:
    """Allow servers on ports below 1024: the network namespace is the workspace's own."""
    try:
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as setting:
            setting.write("0")
    except OSError:
        pass
