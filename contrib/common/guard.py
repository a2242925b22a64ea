"""Runs a program that must leave nothing behind: `python -I -S guard.py OWNER FOLDER COMMAND...`, see `guarded`.

When the program's first process has ended, on SIGTERM, and when the owner is dead, the guard kills everything that the
program has started, also what has a session of its own: the kernel makes the guard the parent of orphans. The program
has the guard's standard input, output and error. The guard removes FOLDER when the owner is dead and cannot do it;
FOLDER may be empty. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

_WATCH_SECONDS = 0.25
_TERM_SECONDS = 1.0
_KILL_SECONDS = 5.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_WAITED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def guarded(command: Sequence[str], *, folder: str | os.PathLike[str] = "") -> list[str]:
    """The command line that runs a command under a guard; this process is the guard's owner.

    Args:
        folder: removed when this process dies; none when empty.
    """
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), os.fspath(folder), *command]


def main(owner: int, folder: str, command: list[str]) -> int:
    """Run the command to its end, and return its exit code; 128 and more is a signal's."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def before() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)

    try:
        # What descriptors were passed on to us are the program's.
        child = subprocess.Popen(command, start_new_session=True, preexec_fn=before, close_fds=False)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        return 127
    # The pipes are the program's alone now: whoever reads them sees when it closes them.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    try:
        _watch(child, owner)
        if child.poll() is None:
            _signal(child.pid, signal.SIGKILL)
            child.wait()
    finally:
        _kill_descendants()
    if folder and os.getppid() != owner:
        import shutil  # not above: an ordinary end has no use for it

        shutil.rmtree(folder, ignore_errors=True)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _watch(child: subprocess.Popen[bytes], owner: int) -> None:
    """Return when the program has ended, or is to be killed."""
    while child.poll() is None and os.getppid() == owner:
        signal_info = signal.sigtimedwait(_WAITED, _WATCH_SECONDS)
        if signal_info is not None and signal_info.si_signo != signal.SIGCHLD:
            _signal(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + _TERM_SECONDS
            while child.poll() is None and time.monotonic() < deadline:
                signal.sigtimedwait({signal.SIGCHLD}, 0.05)
            return


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def _kill_descendants() -> None:
    """Kill until there is no child left: whoever loses its parent becomes ours."""
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for process in descendants():
            try:
                os.kill(process, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        signal.sigtimedwait({signal.SIGCHLD}, 0.02)


def parents_of_processes() -> dict[int, int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # the name in parentheses may hold anything
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue  # it has ended meanwhile
    return parents


def descendants() -> set[int]:
    parents, family = parents_of_processes(), {os.getpid()}
    while children := {process for process, parent in parents.items() if parent in family} - family:
        family |= children
    return family - {os.getpid()}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
