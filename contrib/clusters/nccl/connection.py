"""Connection: an authenticated TCP connection between two processes of a run, for short JSON messages with deadlines.

Before any other message, both ends prove that they know the run's token, without sending it. So a stranger who finds
the port learns nothing, and no run takes another run's weights.
"""

from __future__ import annotations

import hmac
import json
import secrets
import select
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("!I")
_MAX_BYTES_BEFORE_PROOF = 4096  # of one message, until the other end has proved that it knows the token
_MAX_BYTES = 2**28
# A host that vanished sends nothing more: after 10 seconds of silence it is probed three times, 5 seconds apart.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}


class Connection:
    """One end of a connection. It belongs to one thread; other threads may only call `shut_down`.

    Args:
        peer: a connected socket, owned by this object from now on.
        seconds: deadline of every message that is sent or received.
    """

    def __init__(self, peer: socket.socket, seconds: float) -> None:
        self._socket = peer
        self._seconds = seconds
        self._max_bytes = _MAX_BYTES_BEFORE_PROOF
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            peer.setsockopt(socket.IPPROTO_TCP, option, value)
        self._hangup = select.poll()
        self._hangup.register(peer, select.POLLRDHUP)

    @classmethod
    def to(cls, address: str, port: int, seconds: float) -> Connection:
        return cls(socket.create_connection((address, port), seconds), seconds)

    def authenticate(self, token: str, *, role: str, to: str) -> None:
        """Prove that this end knows the token, and check that the other end does. Both ends call it, in their roles."""
        challenge = secrets.token_hex(16)
        self.send(challenge=challenge)
        self.send(proof=_proof(token, role, str(self.receive()["challenge"])))
        if not hmac.compare_digest(_proof(token, to, challenge), str(self.receive()["proof"])):
            raise PermissionError("it does not know this run's token")
        self._max_bytes = _MAX_BYTES

    def send(self, **message: Any) -> None:
        text = json.dumps(message).encode()
        self._socket.settimeout(self._seconds)
        self._socket.sendall(_LENGTH.pack(len(text)) + text)

    def receive(self, *, forever: bool = False) -> dict[str, Any]:
        """Wait for the next message; `forever` waits for its first byte as long as the other end is there."""
        deadline = None if forever else time.monotonic() + self._seconds
        first = self._read(1, deadline)
        deadline = time.monotonic() + self._seconds
        (length,) = _LENGTH.unpack(first + self._read(_LENGTH.size - 1, deadline))
        if length > self._max_bytes:
            raise ConnectionError("its messages do not come from a process of this run")
        try:
            message = json.loads(self._read(length, deadline))
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ConnectionError("its messages do not come from a process of this run")
        return message

    def is_closed(self, *, within: float) -> bool:
        """Whether the other end closes its side, or is dead, `within` this number of seconds; no message is
        consumed."""
        return bool(self._hangup.poll(within * 1000))

    def shut_down(self) -> None:
        """End the connection, from any thread: a waiting call at either end raises at once."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            pass

    def close(self) -> None:
        self._socket.close()

    def _read(self, count: int, deadline: float | None) -> bytes:
        content = bytearray()
        while len(content) < count:
            remaining_s = None if deadline is None else deadline - time.monotonic()
            if remaining_s is not None and remaining_s <= 0:
                raise TimeoutError(f"it did not answer within {self._seconds:g} s")
            self._socket.settimeout(remaining_s)
            try:
                part = self._socket.recv(min(count - len(content), 2**20))
            except TimeoutError:
                continue  # raised above, with a text
            if not part:
                raise ConnectionError("it closed the connection")
            content += part
        return bytes(content)


def _proof(token: str, role: str, challenge: str) -> str:
    return hmac.digest(token.encode(), f"{role} {challenge}".encode(), "sha256").hex()
