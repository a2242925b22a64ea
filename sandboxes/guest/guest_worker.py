"""Confines a worker process that parses text of models with third-party libraries, and reports what is enforced.

envs/processes/worker.py imports it by path, after those libraries. Such a process keeps its user,
and may read that user's files, since the libraries load modules late. It may no longer make the calls that `seccomp.py`
refuses a snippet, write files, open sockets, run programs or signal other processes. Threads that already run are not
confined; forks are. Standard library only.
"""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_SHOWN_LIMITS = ("core", "fsize", "memlock", "msgqueue", "nice", "rtprio", "sigpending")
_NOT_ENFORCED = "it may read what its user may read, as its libraries do, and sees the processes of the machine"


def confine(files: Sequence[str]) -> dict[str, Any]:
    """Confine this process and its future forks for good. Never raises; what is not enforced is in "missing".

    Args: files: those that it must be able to read without the privileges of root.

    Returns: for every denial whether a try was refused; "limits", their names; and "missing", sentences.
    """
    missing = [_NOT_ENFORCED]
    try:
        missing += _lock_down(files)
    except Exception as error:  # another system, a kernel without filters
        missing.append(f"this system refuses to filter its system calls: {type(error).__name__}: {error}")
    return {**_view(), "missing": missing}


def _lock_down(files: Sequence[str]) -> list[str]:
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, folder)
    try:
        import seccomp  # type: ignore[import-not-found]

        if platform.machine() not in seccomp.supported_machines():
            return [f"its system calls are not filtered, because that is not known for {platform.machine()} processors"]
        import guest_kernel as kernel  # type: ignore[import-not-found]
    finally:
        sys.path.remove(folder)
    kernel.lower_small_limits()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    lockdown = kernel.Lockdown(seccomp.seccomp_filter(reads_only=True))
    missing = []
    if os.geteuid() == 0 and not _can_read(files, lockdown):
        missing.append("root keeps its capabilities, because the files of its libraries are another user's")
        lockdown.filter_calls()
    else:
        lockdown.apply(with_parent=False)
        if int(_status().get("CapBnd", "0"), 16):
            missing.append(
                "the bounding set of capabilities is full, as only root empties it; no_new_privs stands for it"
            )
    return missing


def _can_read(paths: Sequence[str], lockdown: Any) -> bool:
    """Whether the files can be read without privileges; a fork tries it."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        lockdown.apply(with_parent=False)
        for path in paths:
            with open(path, "rb") as file:
                file.read(1)
        os._exit(0)
    finally:
        os._exit(1)


def _view() -> dict[str, Any]:
    status = _status()
    return {
        "seccomp": status.get("Seccomp") == "2",
        "capabilities_dropped": bool(status) and all(int(status[name], 16) == 0 for name in _CAPABILITY_SETS),
        "host_watch_denied": _is_refused(_watch),
        "writing_denied": _is_refused(lambda: os.open(os.devnull, os.O_WRONLY)),
        "network_denied": _is_refused(lambda: socket.socket().detach()),
        "programs_denied": _is_refused(lambda: os.execv("/no/such/program", ["x"])),
        "limits": [name for name in _SHOWN_LIMITS if _is_limited(name)],
    }


def _status() -> dict[str, str]:
    try:
        with open("/proc/self/status") as lines:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    except OSError:
        return {}


def _watch() -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.open("/", os.O_RDONLY)
    try:
        descriptors = [libc.inotify_init1(0), libc.fcntl(folder, 1026, 1), libc.fanotify_init(0x200, 0)]
    finally:
        os.close(folder)
    if max(descriptors) < 0:
        raise PermissionError("refused")
    return max(descriptors)


def _is_refused(attempt: Callable[[], Any]) -> bool:
    try:
        fd = attempt()
    except PermissionError:
        return True
    except Exception:
        return False
    os.close(fd)
    return False


def _is_limited(name: str) -> bool:
    kind = getattr(resource, f"RLIMIT_{name.upper()}", None)
    if kind is None:
        return False
    _, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (hard, hard + 1))
    except (OSError, ValueError):
        return hard != resource.RLIM_INFINITY
    return False
