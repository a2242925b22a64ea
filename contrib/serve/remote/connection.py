"""Connections to servers of environments: numbered calls, repeated until they are answered or the server is lost.

Each session has a connection of its own. A pool for all of them would look through all of its connections for each
request: with 256 sessions that takes many times as long as the request itself.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import httpcore
import httpx

from contrib.common.http_clients import Retries, proxy_of, ssl_context
from contrib.common.json_text import write
from contrib.serve.remote import wire
from contrib.serve.remote.server_address import Busy, ServerAddress, check_response, describe
from contrib.serve.remote.wire import Answer
from forge_env.core.errors import ServiceError, UserError

CONNECT_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_VERSION = wire.HEADER.encode()
_LOST = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


class Connections:
    """The connections of one event loop; connections of ended sessions serve the next ones.

    Args:
        retry_seconds: how long a call is tried again after its connection was lost, before the server is.
        silence_seconds: time without a byte after which a connection is lost.
    """

    def __init__(self, *, retry_seconds: float, silence_seconds: float) -> None:
        self.retry_seconds = retry_seconds
        self.timeouts = {
            "connect": min(CONNECT_SECONDS, silence_seconds),
            **dict.fromkeys(("read", "write", "pool"), silence_seconds),
        }
        self._idle: dict[ServerAddress, list[Connection]] = defaultdict(list)
        self._all: list[Connection] = []

    def take(self, server: ServerAddress) -> Connection:
        if idle := self._idle[server]:
            return idle.pop()
        connection = Connection(self, server)
        self._all.append(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Leave a connection to the next session."""
        self._idle[connection.server].append(connection)

    async def close(self) -> None:
        for connection in self._all:
            await connection.close()


class Connection:
    """A connection to a server, which is opened anew when it is lost."""

    def __init__(self, owner: Connections, server: ServerAddress) -> None:
        self.server = server
        self._owner = owner
        proxy = httpx.Proxy(address) if (address := proxy_of(server.url)) else None  # it takes the password out
        self._http = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context(),
            max_connections=1,
            proxy=httpcore.Proxy(str(proxy.url), auth=proxy.raw_auth) if proxy else None,
        )
        url = httpcore.URL(server.url)
        self._headers: dict[str | bytes, str | bytes] = {
            **dict(server.headers.items()),
            "host": server.url.partition("://")[2].partition("/")[0],
            "content-type": "application/json",
        }
        self._origin, self._path = url, url.target.rstrip(b"/") + wire.PATH.encode() + b"/sessions/"

    async def call(self, session: str, request: Mapping[str, Any]) -> Answer:
        """Make a call in a session. It may be sent more than once; the server takes it once, by its number."""
        body = write(request, separators=(",", ":")).encode()
        retries = Retries(_FIRST_PAUSE, _LONGEST_PAUSE, until=monotonic() + self._owner.retry_seconds)
        while True:
            try:
                return await self._once(session, body)
            except (*_LOST, Busy, ValueError) as error:
                if (pause := retries.pause()) is None:
                    raise ServiceError(
                        f"the environment's server {self.server.url} was lost in {request['call']}: {describe(error)}"
                    ) from None
            await asyncio.sleep(pause)

    async def _once(self, session: str, body: bytes) -> Answer:
        origin = self._origin
        response = await self._http.request(
            b"POST",
            httpcore.URL(
                scheme=origin.scheme, host=origin.host, port=origin.port, target=self._path + session.encode()
            ),
            headers={**self._headers, "content-length": str(len(body))},
            content=body,
            extensions={"timeout": self._owner.timeouts},
        )
        version = next((value for name, value in response.headers if name.lower() == _VERSION), b"").decode("latin-1")
        check_response(self.server.url, response.status, version, response.content)
        return Answer.load(response.content)

    async def close(self) -> None:
        await self._http.aclose()


@asynccontextmanager
async def open_connections(*, retry_seconds: float = 30.0, silence_seconds: float = 30.0) -> AsyncIterator[Connections]:
    if retry_seconds < 0 or not silence_seconds > wire.BEAT_SECONDS:
        raise UserError(
            f"retry_seconds={retry_seconds:g} and silence_seconds={silence_seconds:g}: they are at least 0, and above "
            f"{wire.BEAT_SECONDS:g}, the pause between two signs of life of a server"
        )
    connections = Connections(retry_seconds=retry_seconds, silence_seconds=silence_seconds)
    try:
        yield connections
    finally:
        await connections.close()
