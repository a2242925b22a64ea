"""What one machine of a run has to tell of itself, and how it finds out."""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass

_SIOCGIFADDR = 0x8915  # the ioctl for the address of a network interface


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    """What the controller has to know of a host."""

    name: str
    watch_pid: int
    """Process id, on that host, of its watch."""
    temp: str
    """Folder for the temporary files of the run's processes; the watch removes it."""
    logs: str
    """Folder for their logs: the run's own where the host sees it, else one on the host, which stays."""
    address: str
    """Its address on the way to the controller."""
    interface: str
    """The network interface of that address."""


def own_address(host: str, port: int) -> str:
    """This machine's address on the way to another; nothing is sent.

    Raises:
        OSError: when the other's name is not known here, or no way leads there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """The network interface of one of this machine's addresses; "" when none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24]
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(found) == address:
                return name
    return ""
