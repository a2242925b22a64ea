"""The proxy of a workspace with an allowlist: HTTP by absolute address, and everything else by CONNECT.

It listens on the loopback of the workspace, in this process: nothing else leads out of the network namespace. It
resolves names itself, and connects only to what the list allows. A name that is allowed does not lead to private
addresses, unless the list names the address, or the user names the host as his own. Not seen: what goes through a
connection, for example which site of a shared address it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from contrib.workspaces.contract import Network, NetworkMode
from forge_env.core.errors import UserError

PORT = 3128
THIS_MACHINE = ("127.0.0.1", "localhost")
_MAX_HEAD, _CHUNK = 64 * 2**10, 64 * 2**10
_HEAD_S, _CONNECT_S, _IDLE_S = 30.0, 30.0, 600.0
_MOST_CONNECTIONS = 128
_MOST_UNREACHED = 20
_USUAL_PORTS = (80, 443)
_BAD_REQUEST = "400 Bad Request"
_HOST = re.compile(r"[\w.:%-]+")
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_UNICAST = ipaddress.ip_network("2000::/3")


class Refused(Exception):
    """A request that is not allowed or not understood. Args: status line; sentence for the client."""


class Allowlist:
    """Decides on hosts and ports.

    Args:
        hosts: names; "*.example.org" for all names below one, "*" for all; with ":PORT" that port, else 80 and 443.
        own: as `hosts`, without "*": these may have private addresses.
    """

    def __init__(self, hosts: Sequence[str], own: Sequence[str] = ()) -> None:
        self._rules = [_rule(entry, "") for entry in hosts]
        self._own = [_rule(entry, "*") for entry in own]
        if not self._rules and not self._own:
            raise UserError("allowed_hosts is empty: name hosts, or use NetworkMode.LOOPBACK.")

    def allows(self, host: str, port: int) -> bool:
        return any(_matches(rule, host, port) for rule in (*self._rules, *self._own))

    def leads_to(self, host: str, port: int, address: str) -> bool:
        """Whether an allowed host may be reached at an address: a private one is named by the list, or the user's."""
        if _is_public(address) or any(_matches(rule, host, port) for rule in self._own):
            return True
        return address == host and any(name == host and port in ports for name, ports in self._rules)


def _rule(entry: str, mistake: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and the ports of an entry. Args: refused: a name that this list does not take."""
    name, colon, port = entry.strip().rpartition(":") if entry.count(":") == 1 else (entry.strip(), "", "")
    bare = "" if name == mistake else name.removeprefix("*.") if name != "*" else "all"
    if not _HOST.fullmatch(bare) or (colon and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise UserError(
            f'allowed_hosts has {entry!r}; an entry is a host, "*.HOST", or either with ":PORT", no scheme.'
        )
    return name.lower().rstrip("."), (int(port),) if colon else _USUAL_PORTS


def _matches(rule: tuple[str, tuple[int, ...]], host: str, port: int) -> bool:
    name, ports = rule
    host = host.lower().rstrip(".")
    return port in ports and (name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:])))


def names_private(entry: str) -> bool:
    with contextlib.suppress(ValueError):
        return not _is_public(_rule(entry, "")[0])
    return False


def _is_public(address: str) -> bool:
    """Whether an address is public, and neither of this machine nor a detour to IPv4. Raises ValueError for a name."""
    ip = ipaddress.ip_address(address)
    if not ip.is_global or (ip.version == 6 and (ip not in _UNICAST or ip.sixtofour is not None)):
        return False
    with contextlib.suppress(OSError), socket.socket(_FAMILIES[ip.version], socket.SOCK_DGRAM) as unsent:
        unsent.connect((address, PORT))  # what this machine sends to itself comes from the same address
        return bool(unsent.getsockname()[0] != address)
    return True


def allowlist_of(network: Network) -> Allowlist:
    """Return what a network allows: its hosts, its user's, and the hosts of its mirrors."""
    return Allowlist(network.allowed_hosts, (*network.own_hosts, *_mirror_hosts(network)))


def ports_of(network: Network) -> list[int]:
    """Return the ports of a workspace's loopback that `open_proxies` serves: ports of this machine, then the proxy."""
    if network.mode is not NetworkMode.ALLOWLIST:
        return []
    own = (entry.rpartition(":") for entry in (*network.own_hosts, *_mirror_hosts(network)))
    return [*dict.fromkeys(int(port) for host, _, port in own if host in THIS_MACHINE), PORT]


def _mirror_hosts(network: Network) -> list[str]:
    """The mirrors that programs ask themselves."""
    return ["{}:{}".format(*address_of(url)) for kind, url in network.mirrors if kind != APT]


async def open_proxies(network: Network, listeners: list[socket.socket], services: list[Service]) -> None:
    """Serve the ports of `ports_of`.

    Args:
        listeners: the last ones are those of the ports, in the same order; they are taken off.
        services: gets each service, which the caller closes, before it starts.
    """
    *forwards, _ = ports_of(network)
    upstream = next((address_of(url) for kind, url in network.mirrors if kind == APT), None)
    proxies = [*(Forward(("127.0.0.1", port)) for port in forwards), Proxy(allowlist_of(network), upstream)]
    first = len(listeners) - len(proxies)
    for proxy in proxies:
        services.append(proxy)
        await proxy.start(listeners.pop(first))


class Service(ABC):
    """Serves one port of a workspace. Use: construct, `await start(listener)`, and `await close()` at the end."""

    def __init__(self) -> None:
        self.unreachable: list[str] = []
        """What was asked for in vain, a sentence for each."""
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket) -> None:
        """Args: listener: in the network namespace of the workspace; the service closes it."""
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_MAX_HEAD)

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

    def _note(self, reason: str) -> None:
        if reason not in self.unreachable and len(self.unreachable) < _MOST_UNREACHED:
            self.unreachable.append(reason)

    @abstractmethod
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection; what it raises ends it."""


class Forward(Service):
    """Leads to one place. Args: to: host and port."""

    def __init__(self, to: tuple[str, int]) -> None:
        super().__init__()
        self._to = to

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*self._to)
        except OSError as error:
            self._note(f"port {self._to[1]} of this machine cannot be reached: {error}")
            raise
        await _join(reader, writer, *there)


class Proxy(Service):
    """The proxy of a workspace. Args: upstream: host and port of a proxy through which all plain HTTP goes."""

    def __init__(self, allowlist: Allowlist, upstream: tuple[str, int] | None = None) -> None:
        super().__init__()
        self._allowlist, self._upstream = allowlist, upstream

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            host, port, first = _destination(head, is_whole=self._upstream is not None)
            if not self._allowlist.allows(host, port):
                raise Refused("403 Forbidden", f"{host}:{port} is not among the allowed hosts of this workspace")
            out_reader, out_writer = await self._connect(host, port, self._upstream if first else None)
        except Refused as refusal:
            status, reason = refusal.args
            if status != _BAD_REQUEST:
                self._note(reason)
            body = f"{reason}\n".encode()
            answer = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(answer.encode() + body)
            await writer.drain()
            return
        if first:
            out_writer.write(first)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _join(reader, writer, out_reader, out_writer)

    async def _connect(
        self, host: str, port: int, upstream: tuple[str, int] | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an allowed host, at an address that was checked, or to `upstream` for it. Raises Refused."""
        to = upstream or (host, port)
        try:
            async with asyncio.timeout(_CONNECT_S):
                addresses = await _addresses(host, port, may_fail=upstream is not None)
                usable = [address for address in addresses if self._allowlist.leads_to(host, port, address)]
                if addresses and not usable:
                    raise Refused("403 Forbidden", f"{host} has only private addresses, which the list must name")
                return await asyncio.open_connection(*(upstream or (usable[0], port)))
        except (OSError, ValueError) as error:  # a name that cannot be looked up is a ValueError
            raise Refused("502 Bad Gateway", f"{to[0]}:{to[1]} cannot be reached: {error}") from error


def _destination(head: bytes, *, is_whole: bool) -> tuple[str, int, bytes]:
    """Return host, port, and the head to send on; b"" for CONNECT. Raises Refused.

    Args: is_whole: the head is for another proxy, which takes whole addresses.
    """
    line, _, rest = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refused(_BAD_REQUEST, "this is not a request of HTTP/1")
    method, target, version = words
    try:
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname or "", parts.port
        host = host if _HOST.fullmatch(host) else ""
    except ValueError:
        host, port = "", None
    if method == "CONNECT":
        if not host or port is None:
            raise Refused(_BAD_REQUEST, "CONNECT takes HOST:PORT")
        return host, port, b""
    if not host or parts.scheme != "http":
        raise Refused(_BAD_REQUEST, "this is a proxy: send http://HOST/PATH, or CONNECT HOST:PORT")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    place = f"http://{parts.netloc.rpartition('@')[2]}{path}" if is_whole else path
    headers = [row for row in rest.split(b"\r\n") if row and not row.lower().startswith((b"proxy-", b"connection:"))]
    # One request for each connection: the next one may be for another host.
    first = f"{method} {place} {version}".encode("latin-1")
    return host, port or 80, b"\r\n".join([first, *headers, b"Connection: close", b"", b""])


async def _addresses(host: str, port: int, *, may_fail: bool) -> list[str]:
    """Return the addresses of a host; none of one that is not known here, if another proxy is to find it."""
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        if may_fail:
            return []
        raise
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    out_reader: asyncio.StreamReader,
    out_writer: asyncio.StreamWriter,
) -> None:
    """Copy in both directions until both have ended, or nothing comes for long; close what leads out."""
    try:
        async with asyncio.timeout(_IDLE_S) as idle, asyncio.TaskGroup() as both:
            both.create_task(_copy(reader, out_writer, idle))
            both.create_task(_copy(out_reader, writer, idle))
    except* (OSError, TimeoutError):
        pass
    finally:
        out_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle: asyncio.Timeout) -> None:
    """Copy to the end. Args: idle: of both directions, since a long download has one that is silent."""
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
        if not idle.expired():
            idle.reschedule(asyncio.get_running_loop().time() + _IDLE_S)
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


APT = "apt"
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "pypi": ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "npm": ("NPM_CONFIG_REGISTRY", "npm_config_registry"),
    APT: (),
}
"""Kind of a cache of packages that the user names -> the variables of programs that ask it. The URL of pypi is an
index, as for `pip --index-url`, that of npm a registry, as for `npm --registry`. That of apt is a caching proxy: all
that is plain HTTP goes through it, as the packages of Debian and Ubuntu do."""


def read_mirrors(text: str) -> tuple[tuple[str, str], ...]:
    """Read "KIND=URL,KIND=URL".

    >>> read_mirrors("apt=http://cache:3142")
    (('apt', 'http://cache:3142'),)
    """
    mirrors = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        kind, _, url = entry.partition("=")
        if kind not in _VARIABLES or not _is_plain(url) or (kind == APT and not url.startswith("http://")):
            label = f"{kind}=..." if "@" in url else entry
            raise UserError(
                f"mirrors has {label!r}; an entry is pypi=URL or npm=URL, of an index, or apt=http://HOST:PORT, of a "
                "caching proxy; the URL has no password, since every program of the workspace reads it"
            )
        mirrors[kind] = url
    return tuple(mirrors.items())


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def mirror_variables(mirrors: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the environment of programs."""
    variables = {name: url for kind, url in mirrors for name in _VARIABLES[kind]}
    if any(kind == "pypi" and url.startswith("http://") for kind, url in mirrors):
        variables["PIP_TRUSTED_HOST"] = urlsplit(dict(mirrors)["pypi"]).netloc
    return variables


def _is_plain(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_name = bool(parts.hostname) and ":" not in (parts.hostname or "")
        return parts.scheme in ("http", "https") and is_name and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False
