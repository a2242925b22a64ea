"""The empty network namespace of one place, which many runs use one after the other: making one for each is too dear.

Two things outlive the processes of a run in it. Sockets, where descriptors in flight between them form a ring: until
the kernel collects them, they keep their names, the locks of files that are in flight with them, and their share of
what the user may have in flight. And counters, of connections that found no way out for example. Standard library only;
imported by `guest.py`, never by the host.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import guest_kernel as kernel  # type: ignore[import-not-found]

_SOCKETS = "/proc/self/net/unix"
_COUNTERS = ("snmp", "netstat", "snmp6", "ip6_flowlabel")  # the last has what the flow manager keeps, not a count
_MAX_BYTES = 64 * 2**10


class Network:
    """A new network namespace, which this process does not enter.

    Args: home: the network namespace of this process.

    Raises:
        OSError: the kernel does not make one, or there are no descriptors left.
    """

    def __init__(self, home: int) -> None:
        self._opened: list[int] = []
        kernel.unshare(kernel.NEWNET)
        try:
            self.descriptor = self._open("/proc/self/ns/net")
            # What was opened here goes on to show this namespace, wherever its reader is.
            self._sockets = self._open(_SOCKETS)
            names = (name for name in _COUNTERS if os.path.exists(f"/proc/self/net/{name}"))
            self._counters = [self._open(f"/proc/self/net/{name}") for name in names]
            self._no_sockets, self._untouched = _read(self._sockets), self._count()
        except BaseException:
            self.close()
            raise
        finally:
            kernel.setns(home, kernel.NEWNET)

    def holds_sockets(self) -> bool:
        """Whether there are sockets in it. A socket of any kind that outlives its processes hangs on a Unix socket."""
        return _read(self._sockets) != self._no_sockets

    def was_touched(self) -> bool:
        """Whether one of its counters is not what it was at first."""
        return self._count() != self._untouched

    def close(self) -> None:
        for descriptor in self._opened:
            os.close(descriptor)
        self._opened.clear()

    def _open(self, path: str) -> int:
        self._opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return self._opened[-1]

    def _count(self) -> list[bytes]:
        return [_read(descriptor) for descriptor in self._counters]


def collect_sockets() -> None:
    """Have the kernel look for sockets that hang on nothing but each other, which it does when one is closed."""
    with suppress(OSError):  # no descriptors left
        for end in socket.socketpair():
            end.close()


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, _MAX_BYTES, 0)
