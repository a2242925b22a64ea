"""Servers of environments for the tests: in a thread, in a process of its own, and behind a proxy with faults."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from contrib.common.http_server import open_server
from contrib.common.server_settings import ServeSettings
from contrib.serve.env_server import open_app
from contrib.serve.remote.connection import Connections
from forge_env.rollout.factory import make

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "a-token-of-the-tests"
SECONDS = 60.0


class Served:
    """A server in a thread of this process."""

    def __init__(self, url: str, app: Any, stop: Callable[[], None]) -> None:
        self.url = url
        self.app = app
        self.stop = stop
        """Ends it, and waits for that."""


@contextmanager
def served(
    env: str, *, wrap: Callable[[Any], Any] = lambda app: app, opener: Any = open_app, **options: Any
) -> Iterator[Served]:
    """Serve an environment; options that `ServeSettings` has are those of the server.

    Args:
        env: name of the environment.
        wrap: puts another app around the server's.
        opener: the `open_app` of a protocol.
        **options: of the environment and of the server.
    """
    names = set(ServeSettings.__slots__) & options.keys()  # type: ignore[attr-defined]
    settings = ServeSettings(**{"token": TOKEN, **{name: options.pop(name) for name in names}})
    loop = asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()
    result: list[Any] = []

    async def run() -> None:
        try:
            async with (
                make(env, **options) as factory,
                opener(factory, settings) as app,
                open_server(wrap(app), settings.host, ws_max_size=settings.max_request_bytes) as server,
            ):
                result.append(Served(server.url, app, end))
                started.set()
                await stop.wait()
        except BaseException as error:
            result.append(error)
            raise
        finally:
            started.set()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    def end() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
            thread.join(SECONDS)
        assert not thread.is_alive()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(SECONDS)
    if isinstance(result[0], BaseException):
        thread.join(SECONDS)
        raise result[0]
    try:
        yield result[0]
    finally:
        end()


@contextmanager
def server_process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `forge-env serve`; yields the process and its URL."""
    environ = {**os.environ, "FORGE_ENV_TOKEN": TOKEN}
    command = [sys.executable, "-m", "forge_env", "serve", "--json", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        yield process, json.loads(line)["url"]
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


class Proxy:
    """A TCP proxy on loopback. `plan` says for each connection, in order, what happens to it: "pass", "slow",
    "refuse", "drop answer" or "black hole"."""

    def __init__(self, target: str, plan: Sequence[str] = ()) -> None:
        host, _, port = target.partition("://")[2].partition(":")
        self._target = (host, int(port))
        self._plan = iter(plan)
        self.connections = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        what = next(self._plan, "pass")
        try:
            if what == "refuse":
                return
            there, back = await asyncio.open_connection(*self._target)
            tasks = [
                asyncio.create_task(self._pump(reader, back, "" if what == "drop answer" else what)),
                asyncio.create_task(self._pump(there, writer, what)),
            ]
            _, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            back.close()
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> None:
        while data := await reader.read(65536):
            if what == "drop answer":
                return  # the server has taken the call, and the client does not know
            if what == "black hole":
                continue
            if what == "slow":
                await asyncio.sleep(0.05)
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def impatient() -> AsyncIterator[Connections]:
    """Connections that give up at once."""
    connections = Connections(retry_seconds=0, silence_seconds=0.4)
    yield connections
    await connections.close()
