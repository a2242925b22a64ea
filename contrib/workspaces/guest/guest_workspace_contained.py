"""Pid 1 of a workspace in a container: it takes its order from the owner, gives up privileges, and serves.

Run by path (`python -P -s -S guest_workspace_contained.py <socket> <folder of guest_kernel>`), with nothing but the
standard library importable. The engine has made the namespaces, the file system and the limits; the rest is done here.
Python and this file come from the owner's machine, not from the image; no code of the image has run yet. The workspace
ends with the owner: its socket ends then.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import socket
import struct
import sys

sys.path.insert(0, sys.argv[2])
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guest_kernel as kernel  # type: ignore[import-not-found]
import guest_workspace_init as init  # type: ignore[import-not-found]

del sys.path[:2]

_MAX_MESSAGE = 256 * 2**10
_SIOCSIFADDR = 0x8916


def main() -> None:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(sys.argv[1])
    message = link.recv(_MAX_MESSAGE)
    if not message:
        return
    order = json.loads(message)
    try:
        _leave_what_the_engine_gave(link)
        if not order["loopback"]:
            _take_down_loopback()
        listeners = [socket.create_server(("127.0.0.1", port), backlog=128) for port in order["listeners"]]
        lockdown = kernel.Lockdown(base64.b64decode(order["filter"]))
        os.setgroups([])
        init.confine(order, lockdown)
        init.Init(link, order).serve(listeners)
    except OSError as failure:
        link.send(json.dumps({"failed": str(failure), "errno": failure.errno}).encode())
    except Exception as failure:
        link.send(json.dumps({"failed": f"{type(failure).__name__}: {failure}"}).encode())


def _take_down_loopback() -> None:
    """Take down the loopback of this network namespace, and its address with it, so that no address can be reached."""
    kernel.set_loopback_flags(0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        none = struct.pack("16sHH4s16x", b"lo", socket.AF_INET, 0, bytes(4))
        fcntl.ioctl(any_socket, _SIOCSIFADDR, none)


def _leave_what_the_engine_gave(link: socket.socket) -> None:
    os.environ.clear()
    os.umask(0o022)
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    os.closerange(3, link.fileno())
    os.closerange(link.fileno() + 1, 2**20)


if __name__ == "__main__":
    main()
