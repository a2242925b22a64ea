"""Line: a connection between two processes of a run, who tell each other short things as JSON, each with a deadline.

Before anything else both ends prove that they know the run's token, without telling it: a stranger who finds the port
learns nothing, and no run takes the weights of another.
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
_OF_A_STRANGER = 4096  # bytes of one message, until the other end has proved who it is
_AT_MOST = 2**28
# A host that vanished says nothing more: after so many seconds of silence it is asked, and so often, so far apart.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}


class Line:
    """One end of a connection. It belongs to one thread; others may only `hang_up`.

    Args:
        connection: owned by the line from now on.
        seconds: deadline of everything that is said and heard.
    """

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._at_most = _OF_A_STRANGER
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._end = select.poll()
        self._end.register(connection, select.POLLRDHUP)

    @classmethod
    def to(cls, address: str, port: int, seconds: float) -> Line:
        """Connect.

        Raises:
            OSError: when nobody answers there.
        """
        return cls(socket.create_connection((address, port), seconds), seconds)

    def prove(self, token: str, *, role: str, to: str) -> None:
        """Prove to the other end that this one knows the token, and ask the same of it; both call it, in their roles.

        Raises:
            PermissionError: when the other end does not know it.
            OSError: as `hear`.
        """
        asked = secrets.token_hex(16)
        self.say(prove=asked)
        self.say(proof=_proof(token, role, str(self.hear()["prove"])))
        if not hmac.compare_digest(_proof(token, to, asked), str(self.hear()["proof"])):
            raise PermissionError("it does not know this run's token")
        self._at_most = _AT_MOST

    def say(self, **message: Any) -> None:
        """Send a message.

        Raises:
            OSError: when it does not leave in time, or the other end is gone.
        """
        text = json.dumps(message).encode()
        self._connection.settimeout(self._seconds)
        self._connection.sendall(_LENGTH.pack(len(text)) + text)

    def hear(self, *, forever: bool = False) -> dict[str, Any]:
        """Wait for the next message; `forever` for its first byte, as long as the other end is there.

        Raises:
            OSError: TimeoutError when it does not come in time, ConnectionError when the other end is gone.
        """
        deadline = None if forever else time.monotonic() + self._seconds
        first = self._read(1, deadline)
        deadline = time.monotonic() + self._seconds
        (length,) = _LENGTH.unpack(first + self._read(_LENGTH.size - 1, deadline))
        if length > self._at_most:
            raise ConnectionError("it does not speak as a process of this run does")
        try:
            message = json.loads(self._read(length, deadline))
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ConnectionError("it does not speak as a process of this run does")
        return message

    def ended(self, *, within: float) -> bool:
        """Whether the other end closes its side, or is dead, within so many seconds. What it says stays to be heard."""
        return bool(self._end.poll(within * 1000))

    def hang_up(self) -> None:
        """End the connection: who waits at either end is told at once. From any thread."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            pass

    def close(self) -> None:
        self._connection.close()

    def _read(self, count: int, deadline: float | None) -> bytes:
        found = bytearray()
        while len(found) < count:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"it did not answer within {self._seconds:g} s")
            self._connection.settimeout(left)
            try:
                part = self._connection.recv(min(count - len(found), 2**20))
            except TimeoutError:
                continue  # said above
            if not part:
                raise ConnectionError("it closed the connection")
            found += part
        return bytes(found)


def _proof(token: str, role: str, asked: str) -> str:
    return hmac.digest(token.encode(), f"{role} {asked}".encode(), "sha256").hex()
