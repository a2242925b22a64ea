"""System calls of the guest through ctypes. Standard library only; imported by `guest.py`, never by the host."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
NEWCGROUP = 0x2000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS = 23, 24, 28
# NOROOT: user 0 gets no capabilities by being user 0. KEEP_CAPS stays off, and NO_CAP_AMBIENT_RAISE. All locked.
_SECUREBITS = 0x1 | 0x2 | 0x20 | 0x40 | 0x80
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[platform.machine()]

_SMALL_LIMITS = (
    # Not 0: if core dumps go to a program of the host, 0 still starts it; 1 prevents it.
    (resource.RLIMIT_CORE, 1),
    (resource.RLIMIT_MEMLOCK, 0),
    (resource.RLIMIT_MSGQUEUE, 0),
    # Snippets must not inherit raised priorities of this user: they could starve other processes.
    (resource.RLIMIT_NICE, 0),
    (resource.RLIMIT_RTPRIO, 0),
    # Pending signals and timers are kernel memory. Ordinary signals are exempt.
    (resource.RLIMIT_SIGPENDING, 256),
)
_OPEN_FILES = 256
USUAL_STACK = 8 * 2**20

PACKAGES = "/packages"
INSIDE_ID = 61000
"""User id of a program if its starter has no user ids to assign."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    _check(_libc.setns(fd, flags), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [text.encode() if text is not None else None for text in (source, target, kind)]
    _check(_libc.mount(*arguments, flags, data.encode() if data else None), f"mount {target}")


def pivot_root(new: bytes, old: bytes) -> None:
    _check(_libc.syscall(_SYS_PIVOT_ROOT, new, old), "pivot_root")


def end_ignored_signals() -> None:
    """Let signals that are ignored have their default effect again, before a program starts that would inherit it.

    Python ignores SIGPIPE and SIGXFSZ; a shell that starts a job in the background, SIGINT and SIGQUIT.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def die_with_parent(by: int = signal.SIGKILL) -> None:
    """Send a signal to this process when its parent ends. A change of the uid clears the setting."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0), "prctl")


def end_as(child: int) -> NoReturn:
    """Wait for the end of a child, and end as it has ended: for whoever waits for this process."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def send(link: socket.socket, message: dict[str, Any]) -> None:
    """Send a message; it waits while the kernel has no memory."""
    data = json.dumps(message).encode()
    while True:
        try:
            link.send(data)
            return
        except OSError as failure:
            if failure.errno not in (errno.ENOBUFS, errno.ENOMEM):
                raise
            time.sleep(0.01)  # the kernel does not say when it has memory again


def be_killed_first() -> None:
    """Mark this process and its children as the first to be killed when memory runs out."""
    with open("/proc/self/oom_score_adj", "wb", buffering=0) as score:
        score.write(b"1000")


def map_ids(inside: int, uid: int, gid: int) -> None:
    """In a fresh user namespace: map the outer `uid` and `gid` to `inside`."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def unused_ids(first: int, count: int) -> int:
    """Return `first` if `count` ids from it exist here, else INSIDE_ID. Process limits count per user."""
    with open("/proc/self/uid_map") as lines:
        ranges = [(int(inside), int(length)) for inside, _, length in map(str.split, lines)]
    is_mapped = any(inside <= first and first + count <= inside + length for inside, length in ranges)
    return first if is_mapped else INSIDE_ID


def bring_up_loopback() -> None:
    set_loopback_flags(_IFF_UP)


def set_loopback_flags(flags: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags))


def mount_private_tmp(size: int) -> None:
    # Inodes cost kernel memory that `size` does not count.
    mount("tmpfs", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size},nr_inodes=4096,mode=1777")


def mount_proc(options: str | None) -> None:
    mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, options)


def allow_many_open_files() -> None:
    """Raise the limit on open files to the maximum: the zygote holds six descriptors per network namespace."""
    _, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))


def limit_resources(limits: dict[str, int]) -> None:
    """Set the resource limits.

    If a control group counts the memory ("memory_is_counted"), the limit of a process serves only to raise MemoryError.
    It then excludes libraries and reserved address space, which threads and BLAS take much of.
    """
    in_group = limits.get("memory_is_counted")
    for kind, value in (
        (resource.RLIMIT_DATA if in_group else resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        *_SMALL_LIMITS,
    ):
        lower(kind, value)
    # The stack of the first thread is not data. Code that recurses deeply may raise its limit up to this one.
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    lower(resource.RLIMIT_STACK, limits["memory_bytes"], USUAL_STACK if soft == resource.RLIM_INFINITY else soft)
    # SIGXCPU at the soft limit names the cause; SIGKILL later ends code that ignores it.
    lower(resource.RLIMIT_CPU, limits["cpu_kill_s"], limits["cpu_s"])


def lower_small_limits() -> None:
    """Set the limits of every confined process: core dumps, priorities, kernel memory."""
    for kind, value in _SMALL_LIMITS:
        lower(kind, value)


def lower(kind: int, hard: int, soft: int | None = None) -> None:
    """Set a limit, and the soft one if it is another, but none above the present hard limit."""
    _, highest = resource.getrlimit(kind)
    hard = hard if highest == resource.RLIM_INFINITY else min(hard, highest)
    resource.setrlimit(kind, (hard if soft is None else min(soft, hard), hard))


def empty_bounding_set() -> bool:
    """Drop every capability from the bounding set, and lock it; return whether the set is empty.

    It takes CAP_SETPCAP, which a process loses when it changes its user. Without it nothing changes.
    """
    is_empty = bound_capabilities(())
    _libc.prctl(_PR_SET_SECUREBITS, _SECUREBITS, 0, 0, 0)
    return is_empty


def bound_capabilities(exceptions: Collection[int]) -> bool:
    """Drop every capability but those `kept` from the bounding set; return whether no other one is left."""
    capability, has_others = 0, False
    while (value := _libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0)) >= 0:
        if value and capability not in exceptions and _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            has_others = True
        capability += 1
    return not has_others


def set_dumpable(dumpable: bool) -> None:
    """Set whether this process can be dumped, traced and looked at in /proc by others of its user."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0), "prctl")


class Lockdown:
    """Drops every privilege of this process for good. Its buffers are allocated once, before any fork."""

    def __init__(self, bpf: bytes) -> None:
        class Program(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

        self._code = ctypes.create_string_buffer(bpf, len(bpf))
        self._program = Program(len(bpf) // 8, ctypes.cast(self._code, ctypes.c_void_p))
        self._cap_header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
        self._no_caps = (ctypes.c_uint32 * 6)()
        self._capset = _libc.capset  # looked up once, before any fork

    def keep_capabilities(self, exceptions: Collection[int]) -> None:
        """Give up every capability but those `kept`, for this process and all that it starts."""
        if not bound_capabilities(exceptions):
            raise OSError(errno.EPERM, "the bounding set of capabilities cannot be reduced")
        mask = sum(1 << capability for capability in exceptions)
        low, high = mask & 0xFFFFFFFF, mask >> 32
        sets = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)  # effective, permitted, inheritable; twice
        _check(_libc.capset(self._cap_header, sets), "capset")

    def apply(self, *, with_parent: bool = True, bounded: bool = False) -> None:
        """Args: with_parent: die when the thread that started this process ends. bounded: the bounding set is empty."""
        if not bounded:
            empty_bounding_set()
        _check(self._capset(self._cap_header, self._no_caps), "capset")
        set_dumpable(False)  # a crash must not start the host's core dump handler
        if with_parent:
            die_with_parent()
        self.filter_calls()

    def filter_calls(self) -> None:
        """Load only the filter, and give up privileges that executing a program could grant."""
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        _check(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(self._program), 0, 0), "seccomp")


def enter_minimal_root(packages: Sequence[tuple[str, str]], programs: Mapping[str, bytes]) -> None:
    """Replace the root of this mount namespace by a read-only tmpfs that holds only what Python needs.

    Args:
        packages: pairs of a path and the path below PACKAGES at which it is shown.
    """
    interpreter = _interpreter_paths()
    enter_new_root()
    os.mkdir("/tmp")
    for source, target in interpreter:
        bind(source, target)
    for source, target in packages:
        bind(source, f"{PACKAGES}/{target}")
    for target, program in programs.items():
        Path(target).write_bytes(program)
        os.chmod(target, 0o755)
    leave_old_root()


def enter_new_root() -> None:
    mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    # Mounted over /tmp and pivoted to immediately, so sources below the real /tmp stay reachable in /old.
    mount("tmpfs", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    os.mkdir("/tmp/old")
    pivot_root(b"/tmp", b"/tmp/old")
    os.chdir("/")
    os.umask(0o022)
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/old/{name}"):
            os.symlink(os.readlink(f"/old/{name}"), f"/{name}")
        else:
            bind(f"/{name}", f"/{name}")
    for path in ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives"):
        bind(path, path)
    for name in ("null", "zero", "full", "random", "urandom"):
        bind(f"/dev/{name}", f"/dev/{name}")
    # POSIX shared memory then counts towards the size of the private /tmp.
    os.symlink("/tmp", "/dev/shm")


def leave_old_root() -> None:
    os.mkdir("/proc")
    # A user namespace may mount a /proc only while it sees a complete one; this one shows the zygote's pid namespace.
    mount_proc(None)
    _check(_libc.umount2(b"/old", _MNT_DETACH), "umount")
    os.rmdir("/old")
    set_read_only("/", True)


def _interpreter_paths() -> list[tuple[str, str]]:
    """Return pairs (real path, path in Python): only library and program folders, never a whole home folder."""
    nominal = {os.path.dirname(os.__file__), os.path.dirname(sys.executable)}
    for prefix in (sys.base_prefix, sys.base_exec_prefix):
        nominal |= {os.path.join(prefix, name) for name in ("lib", "lib64", "bin")}
    paths = sorted(path for path in nominal if os.path.isdir(path) and not path.startswith("/usr/"))
    return [(os.path.realpath(path), path) for path in paths if path not in ("/bin", "/lib", "/lib64")]


def bind(source: str, target: str) -> None:
    source = "/old" + source
    if not os.path.exists(source) or os.path.lexists(target):
        return
    if os.path.isdir(source):
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    mount(source, target, None, _MS_BIND | _MS_REC)


def set_read_only(path: str, read_only: bool) -> None:
    """Make all mounts at and below a path read-only, or that one mount writable again."""
    # struct mount_attr: attributes to set, to clear; MOUNT_ATTR_RDONLY is 1, NOSUID 2.
    attributes = (ctypes.c_uint64 * 4)(0x1 | 0x2, 0, 0, 0) if read_only else (ctypes.c_uint64 * 4)(0, 0x1, 0, 0)
    recursive = 0x8000 if read_only else 0
    size = ctypes.sizeof(attributes)
    _check(_libc.syscall(_SYS_MOUNT_SETATTR, -100, path.encode(), recursive, attributes, size), f"mount_setattr {path}")
