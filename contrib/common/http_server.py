"""What the servers of HTTP share: listening, uvicorn in the running event loop, tokens, and bounded bodies."""

from __future__ import annotations

import asyncio
import hmac
import importlib.util
import json
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from contrib.common.json_text import decoded, read
from forge_env.core.errors import ServiceError, UserError

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
"""Of ASGI: scope, receive, send."""
MAX_REQUEST_BYTES = 16 * 2**20
START_SECONDS = 30.0
BODY_SECONDS = 60.0
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Stand for all addresses of this machine -> the one at which it reaches itself."""
JSON_TYPE = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")


class RequestRefused(Exception):
    """A request that is answered with an HTTP status and one sentence, in the form of its protocol.

    Example: ``RequestRefused(400, "n is 2; one answer is given: leave n out", param="n")``
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, final: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.final = final
        """Whether the same request would be refused again; clients cannot see that from the status."""

    @property
    def reason(self) -> str:
        """The name of a refusal for counting: the code, else the parameter without its index, else the status."""
        return self.code or (self.param or "").partition("[")[0] or f"HTTP {self.status}"


# ---- serving ----


@dataclass(frozen=True, slots=True)
class Serving:
    url: str
    """Such as http://127.0.0.1:40123."""
    port: int
    new_protocol: Callable[[], asyncio.Protocol]
    """Makes the protocol of a connection to a further listener, which counts as one to this server."""


@asynccontextmanager
async def open_server(app: App, host: str, port: int = 0, **settings: Any) -> AsyncIterator[Serving]:
    """Serve an ASGI app in the running event loop while the block runs.

    Args:
        app: an ASGI app without work of its own at the start and at the end.
        host: an address of this machine.
        port: 0 is any free one.
        **settings: further ones of uvicorn's Config.
    """
    if importlib.util.find_spec("uvicorn") is None:
        raise UserError("a server needs uvicorn: pip install 'forge-env[tools]'")
    import uvicorn

    start, stop = asyncio.Event(), asyncio.Event()

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the owner of the process handles signals

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            start.set()

        async def main_loop(self) -> None:
            """Wait for `stop`; uvicorn's own asks ten times a second whether it is to end."""
            while not stop.is_set():
                await self.on_tick(0)  # the date of the responses
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await stop.wait()

    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        log_level="warning",
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=75,
        **settings,
    )
    server = Server(config)

    def new_protocol() -> Any:
        protocol: Any = config.http_protocol_class
        return protocol(config=config, server_state=server.server_state, app_state={})

    with open_listener(host, port) as listener:
        port = listener.getsockname()[1]
        running, starting = asyncio.create_task(server.serve([listener])), asyncio.create_task(start.wait())
        try:
            await asyncio.wait({running, starting}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not server.started:
                why = running.exception() if running.done() else f"not within {START_SECONDS:g} s"
                raise ServiceError(f"the server did not start: {why}")
            yield Serving(base_url(host, port), port, new_protocol)
        finally:
            server.should_exit = True
            stop.set()
            starting.cancel()
            await asyncio.gather(running, starting, return_exceptions=True)


def open_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: asyncio sets TCP_NODELAY only then, and without it a small response waits for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except BaseException as error:
        listener.close()
        if not isinstance(error, (OSError, OverflowError, UnicodeError)):
            raise
        raise UserError(
            f"a server cannot listen at {host}, port {port}: {getattr(error, 'strerror', '') or error}; give an "
            "address of this machine, and a port that no other process listens at, or 0 for any free one"
        ) from None
    return listener


def free_port(host: str, port: int) -> int:
    """Return a port, or any free one for 0, at which a server can listen; it is not kept."""
    with open_listener(host, port) as listener:
        return int(listener.getsockname()[1])


def base_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


# ---- requests and responses ----


def bearer_token(headers: Mapping[bytes, bytes]) -> str:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def has_token(headers: Mapping[bytes, bytes], token: str) -> bool:
    """Whether a request carries the bearer token; takes the same time for any wrong one."""
    return hmac.compare_digest(bearer_token(headers).encode(), token.encode())


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, max_bytes: int) -> bytes:
    """Return the body of a request, of a bounded size and in a bounded time; a compressed one is unpacked."""
    too_large = RequestRefused(
        413, f"the body is larger than {max_bytes} bytes: max_request_bytes of the server sets the limit"
    )
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                event = await receive()
                parts.append(event.get("body", b""))
                size += len(parts[-1])
                if size > max_bytes:
                    raise too_large
                if event["type"] == "http.disconnect":
                    raise RequestRefused(400, "the connection was closed before the whole body had come")
                if not event.get("more_body"):
                    return _decode_content(b"".join(parts), headers, max_bytes, too_large)
    except TimeoutError:
        raise RequestRefused(408, f"the body did not come within {BODY_SECONDS:g} s") from None


def _decode_content(data: bytes, headers: Mapping[bytes, bytes], max_bytes: int, too_large: RequestRefused) -> bytes:
    """Undo the content encodings of a body, the last one first, up to `max_bytes` bytes."""
    names = headers.get(b"content-encoding", b"").decode("latin-1").lower().split(",")
    for name in reversed([name.strip() for name in names]):
        if name in ("", "identity"):
            continue
        if name not in ("gzip", "x-gzip", "deflate"):
            raise RequestRefused(415, f"the content encoding {name[:40]!r} is not known; gzip and deflate are")
        # Clients send deflate with the frame of zlib, as it should be, and without.
        is_bare = name == "deflate" and (len(data) < 2 or data[0] & 15 != 8 or int.from_bytes(data[:2]) % 31)
        packed, data = data, b""
        try:
            while packed:
                unpacker = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS | 32)
                data += unpacker.decompress(packed, max_bytes + 1 - len(data))
                if len(data) > max_bytes:
                    raise too_large
                if not unpacker.eof:
                    raise zlib.error("it breaks off")
                packed = unpacker.unused_data
        except zlib.error as error:
            raise RequestRefused(400, f"the body is no {name}: {error}") from None
    return data


def parse_json(data: bytes, headers: Mapping[bytes, bytes], loads: Callable[[bytes], Any] = json.loads) -> Any:
    """Parse a body. Its content type may be any: many clients leave it out, or name another one."""
    try:
        return loads(data)
    except (ValueError, RecursionError):
        kind = headers.get(b"content-type", b"").decode("latin-1")
        remark = f", and its content type is {kind!r:.80}" if kind else ""
        raise RequestRefused(400, f"the body is no JSON{remark}: send one JSON object", code="no_json") from None


def exact_json(data: bytes) -> Any:
    """Parse JSON; numbers keep the digits that they are written with."""
    return read(decoded(data))


async def read_object(
    headers: Mapping[bytes, bytes], receive: Receive, max_bytes: int, loads: Callable[[bytes], Any] = json.loads
) -> dict[str, Any]:
    """Return the JSON object of a request; an empty body is an empty object."""
    data = await read_body(headers, receive, max_bytes)
    value = parse_json(data, headers, loads) if data.strip() else {}
    if not isinstance(value, dict):
        raise RequestRefused(400, "the body is no JSON object", code="invalid_request")
    return value


async def send_json(send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    all_headers = [JSON_TYPE, *headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})
