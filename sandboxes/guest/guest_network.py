"""The empty network namespace of a slot. Its runs reuse it, since creating one per run is too slow.

Two things in it outlive the processes of a run. Sockets do, if descriptors in flight between them form a ring: until
the kernel collects them, they keep their names, the locks of files in flight with them, and their share of the user's
descriptors in flight. Counters do, for example of failed connections. Standard library only; imported by `guest.py`,
never by the host.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import guest_kernel as kernel  # type: ignore[import-not-found]

_SOCKETS = "/proc/self/net/unix"
_COUNTERS = ("snmp", "netstat", "snmp6", "ip6_flowlabel")  # the last lists flow labels, not counts
_MAX_BYTES = 64 * 2**10


class Network:
    """A new network namespace; this process stays outside.

    Args: home: the network namespace of this process.
    """

    def __init__(self, home: int) -> None:
        self._descriptors: list[int] = []
        kernel.unshare(kernel.NEWNET)
        try:
            self.descriptor = self._open("/proc/self/ns/net")
            # These files show this namespace to any later reader.
            self._sockets = self._open(_SOCKETS)
            names = (name for name in _COUNTERS if os.path.exists(f"/proc/self/net/{name}"))
            self._counters = [self._open(f"/proc/self/net/{name}") for name in names]
            self._no_sockets, self._first_count = _read(self._sockets), self._count()
        except BaseException:
            self.close()
            raise
        finally:
            kernel.setns(home, kernel.NEWNET)

    def holds_sockets(self) -> bool:
        """Whether it has sockets. A socket of any kind outlives its processes only through a Unix socket."""
        return _read(self._sockets) != self._no_sockets

    def was_touched(self) -> bool:
        return self._count() != self._first_count

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _open(self, path: str) -> int:
        self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return self._descriptors[-1]

    def _count(self) -> list[bytes]:
        return [_read(descriptor) for descriptor in self._counters]


def collect_sockets() -> None:
    """Make the kernel collect sockets that only refer to each other; closing a socket triggers it."""
    with suppress(OSError):  # no descriptors left
        for end in socket.socketpair():
            end.close()


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, _MAX_BYTES, 0)
