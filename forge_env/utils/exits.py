"""Ends processes; how a process has ended: its exit code or the signal, and the words for it."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import struct
import sys

_PIDFD_GET_INFO = 3 << 30 | 64 << 16 | 0xFF << 8 | 11  # of linux/pidfd.h
_PIDFD_INFO_EXIT = 1 << 3


class Terminated(SystemExit):
    """A signal ends this command: no code that the command imports has called sys.exit."""


def ending_signals() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP at the end of a terminal unless it is ignored, as under nohup."""
    return [signal.SIGTERM, *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else [])]


def show_crashes() -> None:
    """Let a crash of this process in native code write the stacks of its Python threads to stderr."""
    if sys.stderr is not None and not faulthandler.is_enabled():
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # stderr has no descriptor
            faulthandler.enable()


def how_it_ended(code: int | None) -> str:
    """Say how a process has ended, for the middle of a sentence.

    >>> how_it_ended(-11)
    'died of SIGSEGV (signal 11)'

    Args:
        code: its exit code, or minus the signal; None if that is not known.
    """
    if code is None:
        return "died"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"died of {signal.Signals(-code).name} (signal {-code})"
    except ValueError:  # a real-time signal
        return f"died of signal {-code}"


def exit_code(pidfd: int) -> int | None:
    """Return the exit code of a process that has ended, or minus the signal.

    It is None if another thread has waited for the process, and the kernel is older than Linux 6.15.
    """
    try:
        if (end := os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is not None:
            return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    except ChildProcessError:
        pass  # another thread has waited for it, or it is not a child
    info = bytearray(struct.pack("Q56x", _PIDFD_INFO_EXIT))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, status = struct.unpack("Q52xi", info)
    return os.waitstatus_to_exitcode(status) if mask & _PIDFD_INFO_EXIT else None
