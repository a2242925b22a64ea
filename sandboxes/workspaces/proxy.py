"""The proxy of a workspace with an allowlist: HTTP by absolute address, and everything else by CONNECT.

It listens on the loopback of the workspace, in this process: nothing else leads out of the network namespace. It
resolves names itself, and connects only to what the list allows. A name that is allowed does not lead to private
addresses, unless the list names the address. Not seen: what goes through a connection, for example which site of a
shared address it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from forge_env.core.errors import UserError

PORT = 3128
_MAX_HEAD, _CHUNK = 64 * 2**10, 64 * 2**10
_HEAD_S, _CONNECT_S, _IDLE_S = 30.0, 30.0, 600.0
_MOST_CONNECTIONS = 128
_USUAL_PORTS = (80, 443)


class Refused(Exception):
    """A request that is not allowed or not understood. Args: status line; sentence for the client."""


class Allowlist:
    """Decides on hosts and ports.

    Args: hosts: names; "*.example.org" for all names below one; with ":PORT" only that port, else 80 and 443.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._rules: list[tuple[str, tuple[int, ...]]] = []
        for entry in hosts:
            name, colon, port = entry.strip().rpartition(":") if entry.count(":") == 1 else (entry.strip(), "", "")
            bare = name.removeprefix("*.")
            if not bare or "*" in bare or "/" in bare or (colon and not (port.isdecimal() and 0 < int(port) < 65536)):
                raise UserError(
                    f'allowed_hosts has {entry!r}; an entry is a host, "*.HOST", or either with ":PORT", no scheme.'
                )
            self._rules.append((name.lower().rstrip("."), (int(port),) if colon else _USUAL_PORTS))
        if not self._rules:
            raise UserError("allowed_hosts is empty: name hosts, or use NetworkMode.LOOPBACK.")

    def allows(self, host: str, port: int) -> bool:
        host = host.lower().rstrip(".")
        return any(
            port in ports and (host.endswith(name[1:]) if name.startswith("*.") else host == name)
            for name, ports in self._rules
        )


class Proxy:
    """Serves one workspace. Create it with `await Proxy.start(...)`; end it with `await close()`.

    Args: listener: in the network namespace of the workspace; the proxy closes it.
    """

    def __init__(self, allowlist: Allowlist) -> None:
        self._allowlist = allowlist
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, listener: socket.socket, allowlist: Allowlist) -> Proxy:
        proxy = cls(allowlist)
        proxy._server = await asyncio.start_server(proxy._accept, sock=listener, limit=_MAX_HEAD)
        return proxy

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= _MOST_CONNECTIONS:
                await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client sees the end of its connection; a cancelled one belongs to a closed proxy
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            host, port, first = _destination(head)
            if not self._allowlist.allows(host, port):
                raise Refused("403 Forbidden", f"{host}:{port} is not among the allowed hosts of this workspace")
            out_reader, out_writer = await _connect(host, port)
        except Refused as refusal:
            status, reason = refusal.args
            body = f"{reason}\n".encode()
            answer = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(answer.encode() + body)
            await writer.drain()
            return
        try:
            if first:
                out_writer.write(first)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.timeout(_IDLE_S) as idle, asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, out_writer, idle))
                both.create_task(_copy(out_reader, writer, idle))
        except* (OSError, TimeoutError):
            pass
        finally:
            out_writer.close()


def _destination(head: bytes) -> tuple[str, int, bytes]:
    """Return host, port, and the head to send on; b"" for CONNECT. Raises Refused."""
    line, _, rest = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refused("400 Bad Request", "this is not a request of HTTP/1")
    method, target, version = words
    try:
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if method == "CONNECT":
        if not host or port is None:
            raise Refused("400 Bad Request", "CONNECT takes HOST:PORT")
        return host, port, b""
    if not host or parts.scheme != "http":
        raise Refused("400 Bad Request", "this is a proxy: send http://HOST/PATH, or CONNECT HOST:PORT")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [row for row in rest.split(b"\r\n") if row and not row.lower().startswith((b"proxy-", b"connection:"))]
    # One request for each connection: the next one may be for another host.
    first = f"{method} {path} {version}".encode("latin-1")
    return host, port or 80, b"\r\n".join([first, *headers, b"Connection: close", b"", b""])


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an allowed host, at an address that was checked. Raises Refused."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(row[4][0]) for row in found))
            usable = [address for address in addresses if address == host or ipaddress.ip_address(address).is_global]
            if not usable:
                raise Refused("403 Forbidden", f"{host} has only private addresses, which the list must name")
            return await asyncio.open_connection(usable[0], port)
    except (OSError, TimeoutError) as error:
        raise Refused("502 Bad Gateway", f"{host}:{port} cannot be reached: {error}") from error


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle: asyncio.Timeout) -> None:
    """Copy to the end. Args: idle: of both directions, since a long download has one that is silent."""
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
        if not idle.expired():
            idle.reschedule(asyncio.get_running_loop().time() + _IDLE_S)
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
