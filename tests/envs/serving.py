"""Serves an ASGI app on loopback, in a thread, for tests of HTTP clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    """Ends when it is told to. uvicorn's own asks ten times a second, and then waits for the clients."""

    ready: threading.Event

    async def main_loop(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self.on_tick(0)  # makes the headers that every response has
        self.ready.set()
        await self._stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.lifespan.shutdown()

    def stop(self) -> None:
        """End it, from another thread."""
        self._loop.call_soon_threadsafe(self._stop.set)


@contextmanager
def serve(app: Any, *, address: str = "127.0.0.1", **options: Any) -> Iterator[str]:
    """Run an app until left; gives its base URL."""
    # The protocol is named: asyncio sets TCP_NODELAY only then, and without it an answer comes 40 ms late.
    listener = socket.socket(
        socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    listener.bind((address, 0))
    listener.listen()
    server = _Server(uvicorn.Config(app, log_level="critical", access_log=False, **options))
    server.ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name="serve")
    thread.start()
    assert server.ready.wait(60)
    try:
        yield f"http://{address}:{listener.getsockname()[1]}"
    finally:
        server.stop()
        thread.join(60)
        listener.close()
        assert not thread.is_alive()
