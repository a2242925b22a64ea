"""The gateway: an endpoint for the programs of one process, in several dialects. Each program has its own token.

A request waits until the episode that it belongs to has a response.
"""

from __future__ import annotations

import asyncio
import hashlib
import marshal
import socket
from collections import ChainMap, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from contrib.common.http_server import (
    ANY_ADDRESS,
    MAX_REQUEST_BYTES,
    NO_STORE,
    Receive,
    RequestRefused,
    Send,
    bearer_token,
    open_server,
    parse_json,
    read_body,
)
from contrib.external.dialects.dialect import Dialect, dump
from contrib.external.dialects.reading import media_in
from contrib.external.dialects.table import DIALECTS, default_dialect, list_of_models
from contrib.external.session import PendingRequest, ProgramSession
from contrib.external.told import RULES, Rule, told
from forge_env.core.errors import UserError
from forge_env.core.types import ToolSpec

MODEL = "policy"
"""The name of the only model; requests for other names are accepted too."""
KEEP_ALIVE_SECONDS = 10.0
MAX_TOOLS = 8
"""Lists of tools that are kept, since programs send the same ones in every request."""
REMEMBERED = 1024
"""Sessions that are still known after their end, if this was asked for."""
_KEEP_ALIVE = {"type": "http.response.body", "body": b": the answer is being sampled\n\n", "more_body": True}
_DISCONNECT_ROUNDS = 4  # rounds of the event loop until a closed connection is known to a task that waits for it


class Gateway:
    """The sessions that are open, and the ASGI app that serves them.

    Args:
        max_request_bytes: the most bytes of a request.
        rules: which requests are auxiliary.
    """

    def __init__(self, *, max_request_bytes: int = MAX_REQUEST_BYTES, rules: Sequence[Rule] = RULES) -> None:
        self.max_request_bytes = max_request_bytes
        self.rules = rules
        self.base_url = ""
        """The URL that programs are given, such as http://127.0.0.1:40123/v1."""
        self.port = 0
        self.unknown_requests = 0
        """How many requests came without the token of a running episode."""
        self._tools: dict[bytes, tuple[ToolSpec, ...]] = {}
        self._sessions: dict[str, ProgramSession] = {}
        self._over: OrderedDict[str, ProgramSession] = OrderedDict()
        self._servers: dict[ProgramSession, asyncio.Server] = {}
        self._new_protocol: Callable[[], asyncio.Protocol]

    def open(self) -> ProgramSession:
        """Start a session; its token is valid until it is closed."""
        session = ProgramSession()
        self._sessions[session.token] = session
        return session

    def close(self, session: ProgramSession, *, is_remembered: bool = False) -> None:
        """End a session. May be called again.

        Args:
            session: to end.
            is_remembered: whether later requests are told that it is over, and not that nobody knows their token.
        """
        entry = self._sessions.pop(session.token, None)
        session.close()
        if is_remembered and entry is not None:
            self._over[session.token] = session
            while len(self._over) > REMEMBERED:
                self._over.popitem(last=False)
        if server := self._servers.pop(session, None):
            server.close()

    async def serve(self, session: ProgramSession, listener: socket.socket) -> None:
        """Serve a further listener until the session is closed or has another, such as one in a sandbox's network."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._new_protocol, sock=listener, start_serving=False)
        if previous := self._servers.pop(session, None):
            previous.close()
        self._servers[session] = server
        await server.start_serving()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        path = scope["path"].rstrip("/")
        dialect = DIALECTS.get(path) or default_dialect(headers)
        try:
            await self._route(scope["method"], path, dialect, headers, receive, send)
        except RequestRefused as refusal:
            more = [(b"x-should-retry", b"false")] if refusal.final else []
            await send_json(send, refusal.status, dialect.error(refusal), *more)

    async def _route(
        self, method: str, path: str, dialect: Dialect, headers: Mapping[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        if method == "HEAD" and (path in ("", "/v1") or path in DIALECTS):
            await _start(send, 200, b"application/json")  # a program asks whether anybody is here, without a token
            await send({"type": "http.response.body"})
            return
        session = self._session(headers)
        if method in ("GET", "HEAD") and (path == "/v1/models" or path.startswith("/v1/models/")):
            name = path.removeprefix("/v1/models").lstrip("/")
            await send_json(send, 200, list_of_models(name, MODEL, headers))
            return
        try:
            pending = await self._queue_request(session, method, path, headers, receive)
        except RequestRefused as refusal:
            if refusal.status < 500:  # above, the episode is over
                session.refusals.add(refusal)
            raise
        await _Delivery(session, pending, dialect, receive, send).run()

    async def _queue_request(
        self, session: ProgramSession, method: str, path: str, headers: Mapping[bytes, bytes], receive: Receive
    ) -> PendingRequest:
        if path not in DIALECTS:
            paths = ", ".join(["/v1/models", *DIALECTS])
            raise RequestRefused(404, f"there is no {path}; there are {paths}", code="not_found")
        if method != "POST":
            raise RequestRefused(405, f"{path} is asked with POST, not with {method}", code="method_not_allowed")
        data = await read_body(headers, receive, self.max_request_bytes)
        DIALECTS[path].check(headers)
        body = parse_json(data, headers)
        request = DIALECTS[path].read(body, session.histories)
        media = [] if request.counts else media_in([body.get("messages"), body.get("input")])
        session.media.update({medium.digest: medium.note for medium in media if medium.data})
        told_of = told(headers, body, request.messages, self.rules)
        request = replace(request, tools=self.shared_tools(request.tools), told=told_of)
        is_retry = headers.get(b"x-stainless-retry-count", b"0") != b"0"
        digest = hashlib.sha256(path.encode() + data).digest()  # of the strong ones the fastest: processors compute it
        return session.add(request, digest, is_retry=is_retry)

    def shared_tools(self, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """Return the same object for the same tools: an agent renders a list of tools that it knows only once."""
        data: Any = tools
        try:
            key = hashlib.sha256(marshal.dumps(data, 2)).digest()  # unlike ==, it tells 1 from 1.0 and from true
        except ValueError:  # nested too deeply
            return tools
        if key not in self._tools and len(self._tools) >= MAX_TOOLS:
            del self._tools[next(iter(self._tools))]
        return self._tools.setdefault(key, tools)

    def _session(self, headers: Mapping[bytes, bytes]) -> ProgramSession:
        tokens = [bearer_token(headers), headers.get(b"x-api-key", b"").decode("latin-1").strip()]
        sessions: Mapping[str, ProgramSession] = ChainMap(self._sessions, self._over)
        session = next((sessions[token] for token in tokens if token in sessions), None)
        if session is None:
            self.unknown_requests += 1
            message = "this endpoint needs the token that its program was given, and this is no such token"
            raise RequestRefused(401, message, code="invalid_api_key")
        return session


class _Delivery:
    """One connection that waits for a response and delivers it."""

    def __init__(
        self, session: ProgramSession, pending: PendingRequest, dialect: Dialect, receive: Receive, send: Send
    ) -> None:
        self._session = session
        self._pending = pending
        self._dialect = dialect
        self._receive = receive
        self._send = send

    async def run(self) -> None:
        hangup = asyncio.create_task(until_disconnected(self._receive))
        try:
            deliver = self._stream if self._pending.request.stream else self._whole
            await deliver(hangup)
        finally:
            self._pending.clients -= 1
            hangup.cancel()

    async def _whole(self, hangup: asyncio.Task[None]) -> None:
        reply = self._pending.reply
        await _either(reply, hangup)
        if await is_disconnected(hangup):
            return
        answer = self._dialect.body(reply.result(), self._pending.request)
        self._remember()
        await send_json(self._send, 200, answer, *_headers(self._pending))
        self._session.delivered(self._pending)

    async def _stream(self, hangup: asyncio.Task[None]) -> None:
        reply = self._pending.reply
        # The head waits for the response, as long as clients wait: it may be a refusal with another status.
        await _either(reply, hangup, timeout=KEEP_ALIVE_SECONDS)
        if reply.done() and reply.exception() is not None:
            reply.result()
        await _start(self._send, 200, b"text/event-stream", *_headers(self._pending))
        while not reply.done() and not hangup.done():
            if not await _either(reply, hangup, timeout=KEEP_ALIVE_SECONDS):
                await self._send(_KEEP_ALIVE)
        if await is_disconnected(hangup):
            return
        # In one message: a client may close the connection as soon as it has read the end of the response.
        try:
            events = b"".join(self._dialect.events(reply.result(), self._pending.request))
        except RequestRefused as refusal:  # a refused request is open no more: a retry is asked anew
            await self._send({"type": "http.response.body", "body": b"".join(self._dialect.error_events(refusal))})
            return
        self._remember()
        await self._send({"type": "http.response.body", "body": events})
        self._session.delivered(self._pending)

    def _remember(self) -> None:
        """Keep the conversation up to this response, for a request that names it."""
        reply, request = self._pending.reply.result(), self._pending.request
        if name := self._dialect.name_of(reply):
            self._session.histories[name] = (*request.messages[request.leading :], reply.message)


def _headers(pending: PendingRequest) -> list[tuple[bytes, bytes]]:
    without_effect = pending.request.ignored
    return [(b"x-forge-env-ignored", ", ".join(without_effect).encode())] if without_effect else []


async def _either(*futures: asyncio.Future[Any], timeout: float | None = None) -> bool:
    """Wait until one of the futures is done; return whether one is."""
    done, _ = await asyncio.wait(set(futures), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def is_disconnected(hangup: asyncio.Task[None]) -> bool:
    """Whether the client has closed its connection, by the task of `until_disconnected`."""
    for _ in range(_DISCONNECT_ROUNDS):
        await asyncio.sleep(0)
    return hangup.done()


async def until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, status: int, value: Any, *headers: tuple[bytes, bytes]) -> None:
    await _start(send, status, b"application/json", *headers)
    await send({"type": "http.response.body", "body": dump(value)})


async def _start(send: Send, status: int, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
    own_headers = [(b"content-type", kind), NO_STORE, *headers]
    await send({"type": "http.response.start", "status": status, "headers": own_headers})


@asynccontextmanager
async def open_gateway(host: str = "127.0.0.1", rules: Sequence[Rule] = RULES) -> AsyncIterator[Gateway]:
    """Serve a gateway on the running event loop, at a free port."""
    if not host or host in ANY_ADDRESS:
        raise UserError(
            f"the gateway cannot listen at host={host!r}: programs need one address to call, and this stands for all "
            "of them; name one address of this machine, or leave host out for programs on it"
        )
    gateway = Gateway(rules=rules)
    async with open_server(gateway, host, ws="none") as server:
        gateway.port, gateway.base_url = server.port, f"{server.url}/v1"
        gateway._new_protocol = server.new_protocol
        yield gateway
