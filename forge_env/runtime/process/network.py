"""A TCPStore of torch's at an address of this machine."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK = "127.0.0.1"


def serve_tcp_store(address: str) -> tuple[TCPStore, int]:
    """Serve a TCPStore of torch's at a free port of `address`; returns it, and its port.

    The port is bound before any process is told of it, so no other process can take it meanwhile.
    """
    from torch.distributed import TCPStore

    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, port
