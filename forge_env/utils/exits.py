"""Ends processes; how a process has ended: its exit code or the signal, and the words for it."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

_PIDFD_GET_INFO = 3 << 30 | 64 << 16 | 0xFF << 8 | 11  # of linux/pidfd.h
_PIDFD_INFO_EXIT = 1 << 3


class Terminated(SystemExit):
    """A signal ends this command: no code that the command imports has called sys.exit."""


def ending_signals() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP at the end of a terminal unless it is ignored, as under nohup."""
    return [signal.SIGTERM, *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else [])]


@contextlib.contextmanager
def ends_in_order() -> Iterator[None]:
    """Turn `ending_signals` into `Terminated`, so that a command ends in order what it has started.

    An error that Ctrl-C has caused is Ctrl-C: NumPy makes a RuntimeError of it while it is imported, and the import of
    a user's file makes an error of that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: Any) -> None:
        raise Terminated(128 + number)

    previous = {number: signal.signal(number, end) for number in ending_signals()}
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__
        if cause is not None:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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
