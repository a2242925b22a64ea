"""A proxy that is named in the environment, and whether a client of HTTP goes through it."""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

PROXY_VARIABLES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY")
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
Client = Callable[[str], Awaitable[object]]
"""Sends something to a URL."""


class Recorder(socketserver.ThreadingTCPServer):
    """A server that keeps the first line of each request, and refuses all of them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lines: list[str] = []


class _Handler(socketserver.StreamRequestHandler):
    server: Recorder

    def handle(self) -> None:
        self.server.lines.append(self.rfile.readline().decode().split()[1])
        with contextlib.suppress(OSError):
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(30)


async def goes_past_a_proxy(client: Client, name: str) -> None:
    """Check that a client sends what is for this machine to it, and all else through the proxy.

    Args:
        client: the client.
        name: variable of the environment that names the proxy.
    """
    with recording() as recorder, pytest.MonkeyPatch.context() as patch:
        port = recorder.server_address[1]
        for variable in VARIABLES:
            patch.delenv(variable, raising=False)
            patch.delenv(variable.lower(), raising=False)
        patch.setenv(name, f"http://127.0.0.1:{port}")
        patch.setenv("FORGE_ENV_TOKEN", "token-of-a-test")

        async def asked(url: str) -> list[str]:
            recorder.lines.clear()
            with contextlib.suppress(Exception):  # it is refused
                async with asyncio.timeout(20):
                    await client(url)
            assert recorder.lines
            return recorder.lines

        assert all(line.startswith("/") for line in await asked(f"http://127.0.0.1:{port}"))
        assert all("elsewhere.example" in line for line in await asked("http://elsewhere.example"))
