"""An ASGI app on a listener, served by uvicorn in the running event loop; bearer tokens and bounded request bodies."""

from __future__ import annotations

import asyncio
import hmac
import importlib.util
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from forge_env.core.errors import ServiceError, UserError
from forge_env.serve.settings import ServeSettings

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]
START_SECONDS = 30.0
BODY_SECONDS = 60.0


class RequestRefused(Exception):
    """A request that is answered with an HTTP status and one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@asynccontextmanager
async def serve_app(app: App, settings: ServeSettings, *, lifespan: bool = False) -> AsyncIterator[str]:
    """Serve an app while the block runs; yields its URL, such as "http://127.0.0.1:40123".

    Args:
        app: an ASGI app.
        settings: its address.
        lifespan: whether the app has work of its own at the start and at the end.
    """
    if importlib.util.find_spec("uvicorn") is None:
        raise UserError("serving needs uvicorn: pip install 'forge-env[tools]'")
    with open_listener(settings.host, settings.port) as listener:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        size, has_lifespan = settings.max_request_bytes, "on" if lifespan else "off"
        async with run_server(app, listener, lifespan=has_lifespan, ws_max_size=size):
            yield f"http://{host}:{listener.getsockname()[1]}"


@asynccontextmanager
async def run_server(app: App, listener: socket.socket, **settings: Any) -> AsyncIterator[Any]:
    """Run a server of uvicorn in the running event loop while the block runs; yields it.

    Args:
        app: an ASGI app.
        listener: the socket that serves it.
        **settings: further ones of uvicorn's Config.
    """
    import uvicorn

    stop = asyncio.Event()

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the owner of the process handles signals

        async def main_loop(self) -> None:
            """Wait for `stop`; uvicorn's own asks ten times a second whether it is to end."""
            while not stop.is_set():
                await self.on_tick(0)  # the date of the responses
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await stop.wait()

    server = Server(
        uvicorn.Config(
            app,
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=75,
            **settings,
        )
    )
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _until_started(server, running)
        yield server
    finally:
        server.should_exit = True
        stop.set()
        await asyncio.gather(running, return_exceptions=True)


def has_token(headers: Mapping[bytes, bytes], token: str) -> bool:
    """Whether a request carries the bearer token; takes the same time for any wrong one."""
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(value.strip(), token.encode())


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, max_bytes: int) -> bytes:
    """Return the body of a request."""
    too_large = RequestRefused(413, f"the request is larger than {max_bytes} bytes: --max-request-bytes sets the limit")
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
                    raise RequestRefused(400, "the connection was closed before the whole request had come")
                if not event.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise RequestRefused(408, f"the request did not come within {BODY_SECONDS:g} s") from None


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one."""
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


async def _until_started(server: Any, running: asyncio.Task[None]) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            while not server.started:
                if running.done():
                    raise ServiceError(f"the server did not start: {running.exception()}")
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise ServiceError(f"the server did not start within {START_SECONDS:g} s") from None
