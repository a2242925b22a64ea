"""The network addresses of this machine, and a TCPStore of torch's at one of them."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # the ioctl for the address of a network interface


def own_address(host: str, port: int) -> str:
    """This machine's address on the way to another; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """The network interface of one of this machine's addresses; "" if none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return ""


def serve_tcp_store(address: str) -> tuple[TCPStore, int]:
    """Serve a TCPStore of torch's at a free port of `address`; returns it, and its port.

    The port is bound before any process is told of it, so no other process can take it meanwhile.
    """
    from torch.distributed import TCPStore

    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, port
