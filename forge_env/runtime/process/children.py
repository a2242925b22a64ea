"""Child processes of this one, and groups of processes: killing them, and waiting for their ends."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_GROUP_SECONDS = 5.0
END_S = 3.0  # a killed process is gone within it; below `HostSettings.silence_seconds`, which the controller waits


def kill_children(pids: Iterable[int]) -> None:
    """End these processes if they are still our children; another process with such a number is left alone."""
    for pid in pids:
        try:
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
        except (ChildProcessError, ProcessLookupError):
            pass


def is_reaped(pid: int) -> bool:
    """Whether a child has ended; its exit status is collected here, or was collected elsewhere."""
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:  # it was reaped elsewhere
        return True


def kill_group(group: int) -> None:
    """Kill the processes of a group, but not this one, and wait for their ends.

    A resource tracker of `multiprocessing` ends last, by itself: it removes the shared memory and the semaphores of
    those that were killed. After 5 s it is killed as well. This process may be in the group, and a tracker of its own
    then ends after it.
    """
    deadline = time.monotonic() + _GROUP_SECONDS
    while members := {pid for pid in _members(group) if pid != os.getpid()}:
        is_late = time.monotonic() > deadline
        victims = members if is_late else {pid for pid in members if not _is_tracker(pid)}
        for pid in victims:
            kill(pid)
        if is_late or (not victims and os.getpgrp() == group):
            return
        time.sleep(0.01)


def _members(group: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]  # before that is a name, with spaces
            if int(its_group) == group and state not in "ZX":
                yield int(path.parent.name)


def _is_tracker(pid: int) -> bool:
    with suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def processes_with(variable: str) -> list[int]:
    """Every other process that was started with this environment variable; but no tracker, see `kill_group`."""
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environ = (folder / "environ").read_bytes()
            except OSError:  # it ended meanwhile, or is another user's
                continue
            if variable.encode() in environ.split(b"\0") and not _is_tracker(int(folder.name)):
                pids.append(int(folder.name))
    return pids


def pidfd_of(pid: int) -> int:
    """A descriptor that becomes readable when the process ends."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:  # it has ended; this file's descriptor is readable too
        return os.open(os.devnull, os.O_RDONLY)


def end_processes(pids: Iterable[int]) -> None:
    """Kill processes, and wait for their ends, END_S at most: a process may hang in a disk or a GPU."""
    ends = select.poll()
    pidfds = set()
    for pid in pids:
        pidfds.add(pidfd := pidfd_of(pid))
        ends.register(pidfd, select.POLLIN)
        kill(pid)
    deadline = time.monotonic() + END_S
    while pidfds and (seconds := deadline - time.monotonic()) > 0:
        for pidfd, _ in ends.poll(seconds * 1000):
            ends.unregister(pidfd)
            pidfds.remove(pidfd)
            os.close(pidfd)
    for pidfd in pidfds:
        os.close(pidfd)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def process_began() -> float:
    """The start of this process, in seconds since the epoch: before its interpreter and its imports."""
    # The 22nd field, in ticks since the machine started; the second field is a name that may have spaces.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def die_with(pid: int, *, group: bool = False) -> None:
    """End this process when process `pid` ends, for any reason: a thread waits for its pidfd.

    Args:
        group: also end all processes of this process's group, which it must lead, see `kill_group`.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)

    def wait() -> None:
        select.select([pidfd], [], [])
        if group and os.getpgid(0) == os.getpid():
            kill_group(os.getpid())
        os._exit(1)

    threading.Thread(target=wait, name=f"die-with-{pid}", daemon=True).start()
