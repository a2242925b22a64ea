"""Ports that a test gives to a process which listens at them only later."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that are free.

    The kernel gives them to nobody who asks for any port, so that no connection takes them before they are used.
    """
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    candidates = [port for port in range(10_000, 2**16) if not first <= port <= last]
    found: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        with suppress(OSError):  # it is taken
            socket.create_server(("127.0.0.1", port)).close()
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"fewer than {count} ports are free")
