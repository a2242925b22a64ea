"""Runs a command that must not outlive its owner: `python -I mcp_guard.py OWNER COMMAND...`.

Standard input and output are the command's own. It ends the command and all that it started when the command's first
process has ended, when told to by SIGTERM, and when the owner is dead, however that died: it sees it by its parent
having changed. It imports nothing of ours, so that it starts fast whatever the environment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

_WATCH_SECONDS = 0.25
_TERM_SECONDS = 1.0  # the owner kills after two
_PR_SET_PDEATHSIG = 1
_WAITED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def main(owner: int, command: list[str]) -> int:
    """Run the command to its end, and return its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    libc = ctypes.CDLL(None)

    def before() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)

    child = subprocess.Popen(command, start_new_session=True, preexec_fn=before)
    # The pipes are the child's alone now: whoever holds the other end sees when the child closes them.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        _watch(child, owner)
    finally:
        _signal(child.pid, signal.SIGKILL)
    return child.wait()


def _watch(child: subprocess.Popen[bytes], owner: int) -> None:
    """Return when the child has ended, or is to be killed."""
    while child.poll() is None and os.getppid() == owner:
        received = signal.sigtimedwait(_WAITED, _WATCH_SECONDS)
        if received is not None and received.si_signo != signal.SIGCHLD:
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


if __name__ == "__main__":
    code = main(int(sys.argv[1]), sys.argv[2:])
    sys.exit(code if code >= 0 else 128 - code)
