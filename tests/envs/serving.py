"""Serves an ASGI app on loopback, in a thread, for tests of HTTP clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def serve(app: Any, **options: Any) -> Iterator[str]:
    """Run an app until left; gives its base URL."""
    config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1, **options)
    listener = socket.create_server(("127.0.0.1", 0))
    started = threading.Event()

    class Started(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

    server = Started(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name="serve")
    thread.start()
    try:
        assert started.wait(60)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive()
