"""The HTTP interface of served sessions, in front of the gateway that answers their requests for the model.

    POST /sessions              take a session            token of the server
    GET  /sessions/ID           what is known of it       token of the server or of the session
    POST /sessions/ID/finish    give its answer or reward token of the server or of the session

Any other path is the gateway's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from contrib.common.http_server import Receive, RequestRefused, Send, bearer_token, read_object
from contrib.external.gateway import MODEL, Gateway, is_disconnected, send_json, until_disconnected
from contrib.external.served.desk import Desk
from contrib.external.served.requests import read_finish, read_wait
from contrib.external.served.visit import Visit

MAX_WAITING = 1024
"""The most requests at once that wait for a session."""
FINISH_SECONDS = 600.0
"""How long the answer to a finish may wait until the episode is scored and recorded."""
_PATH = re.compile(r"/sessions/([0-9a-f]{1,64})(/finish)?")
_HOST = re.compile(rb"[A-Za-z0-9.\-_:\[\]]{1,255}")


class ServedApp:
    """The ASGI app of a desk and its gateway."""

    def __init__(self, desk: Desk, gateway: Gateway) -> None:
        self._desk = desk
        self._gateway = gateway
        self._waiting = 0

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        path = scope.get("path", "").rstrip("/")
        if scope["type"] != "http" or not (path == "/sessions" or path.startswith("/sessions/")):
            await self._gateway(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        try:
            await self._route(scope["method"], path, headers, receive, send)
        except RequestRefused as refusal:
            more = [(b"retry-after", b"1")] if refusal.status == 503 else []
            error = {"message": str(refusal), "code": refusal.code, "param": refusal.param}
            await send_json(send, refusal.status, {"error": error}, *more)

    async def _route(
        self, method: str, path: str, headers: Mapping[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        match = _PATH.fullmatch(path)
        if path != "/sessions" and match is None:
            raise RequestRefused(404, f"there is no {path:.200}; see POST /sessions", code="not_found")
        right_method = "GET" if match is not None and not match[2] else "POST"
        if method != right_method and (method, right_method) != ("HEAD", "GET"):
            raise RequestRefused(
                405, f"{path:.200} is asked with {right_method}, not with {method}", code="wrong_method"
            )
        if match is None:
            self._check_token(headers)
            await self._take(headers, receive, send)
            return
        visit = self._visit(match[1], headers)
        if match[2]:
            await self._finish(visit, headers, receive, send)
        else:
            await send_json(send, 200, visit.state())

    async def _take(self, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        body = await read_object(headers, receive, self._gateway.max_request_bytes)
        hangup = asyncio.create_task(until_disconnected(receive))
        try:
            if self._desk.begin is None:
                visit = await self._next(body, hangup)
            else:
                visit = await self._desk.begin(body)
                if await is_disconnected(hangup):
                    visit.fail("the agent that asked for the session was gone before it was told of it")
            if visit is not None:
                await send_json(send, 201, self._description(visit, headers))
        finally:
            hangup.cancel()

    async def _next(self, body: Mapping[str, Any], hangup: asyncio.Task[None]) -> Visit | None:
        """Wait for a session on offer; None if the client has gone meanwhile, which so takes none."""
        seconds = read_wait(body)
        if self._waiting >= MAX_WAITING:
            raise RequestRefused(503, f"{MAX_WAITING} requests wait for a session, which is all that may", code="busy")
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self._waiting += 1
        try:
            while not await is_disconnected(hangup):
                if self._desk.is_closed:
                    raise RequestRefused(503, "the server is being stopped", code="stopping")
                if (visit := self._desk.take()) is not None:
                    return visit
                if (remaining_s := until - loop.time()) <= 0:
                    raise RequestRefused(
                        503, f"no session is on offer after {seconds:g} s: ask again", code="no_session"
                    )
                arrival = asyncio.create_task(self._desk.arrival())
                await asyncio.wait({arrival, hangup}, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
                arrival.cancel()
            return None
        finally:
            self._waiting -= 1

    async def _finish(self, visit: Visit, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        body = await read_object(headers, receive, self._gateway.max_request_bytes)
        digest = hashlib.blake2b(json.dumps(body, sort_keys=True).encode()).digest()
        if visit.finish_digest and visit.finish_digest != digest:
            raise RequestRefused(
                409,
                f"the session {visit.id} was finished before with another answer or reward, which counts: this one "
                "changes nothing",
                code="finished",
            )
        if not visit.finish_digest:
            self._check_open(visit)
            work = read_finish(body, self._desk.scorer)
            if isinstance(work, str):
                visit.fail(f"the session's agent gave up: {work}", digest)
            else:
                visit.finish(work, digest)
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                await visit.summary()
        except TimeoutError:
            await send_json(send, 202, visit.state())  # it is still being scored
            return
        await send_json(send, 200, visit.state())

    def _check_open(self, visit: Visit) -> None:
        if visit.has_ended:
            state = visit.state()
            limit = state.get("ended_by")
            why = state.get("error") or (f"it was ended by {limit}" if limit else f"its outcome is {state['outcome']}")
            raise RequestRefused(
                409, f"the session {visit.id} has ended, and this changes nothing: {why}", code="ended"
            )

    def _check_token(self, headers: Mapping[bytes, bytes]) -> None:
        if not self._desk.admits(bearer_token(headers)):
            raise RequestRefused(
                401, "sessions are opened with the token of this server, as a bearer token", code="invalid_api_key"
            )

    def _visit(self, session_id: str, headers: Mapping[bytes, bytes]) -> Visit:
        """Return a session. Who has no token does not learn whether it exists."""
        visit = self._desk.find(session_id)
        token = bearer_token(headers)
        if not self._desk.admits(token) and not (visit is not None and visit.admits(token)):
            raise RequestRefused(
                401, "this needs the token of the session, or of this server, as a bearer token", code="invalid_api_key"
            )
        if visit is None:
            raise RequestRefused(404, f"there is no session {session_id}", code="not_found")
        return visit

    def _description(self, visit: Visit, headers: Mapping[bytes, bytes]) -> dict[str, Any]:
        """Return what an agent needs: where the model is, the task without its target, and the limits."""
        host = headers.get(b"host", b"")
        url = self._desk.public_url
        if not url:
            url = f"http://{host.decode()}" if _HOST.fullmatch(host) else self._gateway.base_url.removesuffix("/v1")
        task = visit.task
        return {
            "id": visit.id,
            "url": f"{url}/sessions/{visit.id}",
            "base_url": f"{url}/v1",
            "anthropic_base_url": url,
            "api_key": visit.session.token,
            "model": MODEL,
            "task": {"id": task.id, "messages": task.prompt, "metadata": dict(task.metadata)},
            "seed": visit.seed,
            "limits": asdict(visit.limits),
        }
