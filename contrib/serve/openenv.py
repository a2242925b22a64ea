"""Serves an environment by the OpenEnv protocol, for clients of the packages openenv and openenv-core.

    GET  /health /metadata /schema                 what is served
    GET  /list_environments, /NAME/splits          its tasks,
    POST /NAME/num_tasks /task /tasks /task_range  in the form of OpenEnv
    WS   /ws                                       a session: reset, step, state, mcp, close
    POST /mcp                                      sessions for clients that call tools over HTTP

Each path stands below /TOKEN, or the request has the header "Authorization: Bearer TOKEN".
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from contrib.common.http_server import Receive, RequestRefused, Send, exact_json, has_token, read_object, send_json
from contrib.common.server_settings import ServeSettings
from contrib.serve.client_episode import EpisodeFault
from contrib.serve.desk import Desk, PlayOptions, open_desk
from contrib.serve.openenv_session import OpenEnvSession, Refused, fault_code
from contrib.serve.openenv_socket import serve_socket
from contrib.serve.tool_face import tool_list
from forge_env import __version__
from forge_env.core.errors import UserError
from forge_env.core.types import Task

logger = logging.getLogger(__name__)
SCHEMAS = json.loads(Path(__file__).with_name("openenv_schemas.json").read_text(encoding="utf-8"))
_INVALID, _UNKNOWN_METHOD, _SERVER_ERROR = -32602, -32601, -32000  # of JSON-RPC


@asynccontextmanager
async def open_app(factory: Any, settings: ServeSettings, play: PlayOptions) -> AsyncIterator[OpenEnvApp]:
    """Open the ASGI app of an environment with an open factory; at the end all its sessions are ended."""
    async with open_desk(factory, "openenv", settings, play) as desk:
        app = OpenEnvApp(desk)
        sweeper = asyncio.create_task(app.end_idle())
        try:
            yield app
        finally:
            sweeper.cancel()


class OpenEnvApp:
    """The ASGI app: the sessions that are open, and what answers a request."""

    path = ""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.failure = desk, desk.failure
        self.settings = desk.settings
        self.sessions: dict[str, OpenEnvSession] = {}
        self._name = desk.factory.name

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        path = self._admit(scope)
        if scope["type"] == "websocket":
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            await serve_socket(self, path, query.get("session_id", [""])[0], receive, send)
            return
        try:
            if path is None:
                raise RequestRefused(401, "the token is wrong or missing: it is the first part of the path")
            answer = await self._respond(scope, path, receive)
            status = 200
        except RequestRefused as refusal:
            status, answer = refusal.status, {"detail": str(refusal)}
        await send_json(send, status, json.dumps(answer).encode())

    def open_session(self) -> OpenEnvSession:
        most = self.settings.max_sessions
        if len(self.sessions) >= most:
            raise Refused(
                "CAPACITY_REACHED", f"all {most} sessions are in use: --max-sessions of the server sets how many"
            )
        session = OpenEnvSession(self.desk)
        self.sessions[session.id] = session
        return session

    async def end_session(self, session: OpenEnvSession, why: str) -> None:
        try:
            await session.end(why)
        finally:
            self.sessions.pop(session.id, None)

    async def end_idle(self) -> None:
        """End sessions without a socket that no request has used for `idle_seconds`, for ever."""
        limit = self.settings.idle_seconds
        while True:
            await asyncio.sleep(min(limit / 4, 30.0))
            oldest = time.monotonic() - limit
            for session in list(self.sessions.values()):
                if not session.has_socket and session.last_use < oldest:
                    await self.end_session(session, f"the client sent nothing for {limit:g} s")

    def _admit(self, scope: Mapping[str, Any]) -> str | None:
        """Return the path without the token; None for a request without the token."""
        path, token = scope["path"], self.settings.token
        if hmac.compare_digest(path[1 : len(token) + 1].encode(), token.encode()):
            rest = path[len(token) + 1 :]
            return rest.rstrip("/") if not rest or rest.startswith("/") else None
        headers = {name.lower(): value for name, value in scope["headers"]}
        return path.rstrip("/") if has_token(headers, token) else None

    async def _respond(self, scope: Mapping[str, Any], path: str, receive: Receive) -> Any:
        if scope["method"] in ("GET", "HEAD"):
            return await self._get(path)
        if scope["method"] != "POST":
            raise RequestRefused(405, f"the method is {scope['method']!r:.20}; it is GET or POST")
        headers = {name.lower(): value for name, value in scope["headers"]}
        body = await read_object(headers, receive, self.settings.max_request_bytes, exact_json)
        return await (self._rpc_over_http(body) if path == "/mcp" else self._ask_tasks(path, body))

    async def _get(self, path: str) -> Any:
        if path == "/health":
            return {"status": "healthy"}
        if path == "/metadata":
            description = " ".join((self.desk.factory.env_class.__doc__ or "").split())
            return {"name": self._name, "description": description or self._name, "version": __version__}
        if path == "/schema":
            return SCHEMAS
        if path == "/list_environments":
            return [self._name]
        if path == self._place("splits"):
            return [{"name": split, "type": split} for split in await self.desk.splits()]
        raise RequestRefused(404, f"there is no {path!r:.80}: episodes are played over the WebSocket at /ws")

    def _place(self, question: str) -> str:
        return f"/{self._name}/{question}"

    async def _ask_tasks(self, path: str, body: Mapping[str, Any]) -> Any:
        question = path.removeprefix(self._place(""))
        if question not in ("num_tasks", "task", "tasks", "task_range"):
            raise RequestRefused(404, f"there is no {path!r:.80}: episodes are played over the WebSocket at /ws")
        try:
            tasks = await self.desk.tasks(str(body.get("split") or ""))
        except UserError as error:
            raise RequestRefused(400, str(error)) from None
        if question == "num_tasks":
            return {"num_tasks": len(tasks)}
        index, first, last = (body.get(name) for name in ("index", "start", "stop"))
        if question == "task":
            if type(index) is not int or not 0 <= index < len(tasks):
                raise RequestRefused(400, f"index is {index!r:.20}; it is a number from 0 to {len(tasks) - 1}")
            return {"task": task_spec(tasks[index])}
        if any(value is not None and type(value) is not int for value in (first, last)):
            raise RequestRefused(400, "start and stop are numbers of tasks")
        return {"tasks": [task_spec(task) for task in tasks[first:last]], "env_name": self._name}

    async def _rpc_over_http(self, request: Mapping[str, Any]) -> dict[str, Any]:
        method, params = request.get("method"), request.get("params") or {}
        name = params.get("session_id") if isinstance(params, dict) else None
        session = self.sessions.get(str(name))
        if method == "openenv/session/create":
            try:
                return rpc_result(request, {"session_id": self.open_session().id})
            except Refused as refusal:
                return rpc_error(request, _SERVER_ERROR, str(refusal))
        if session is None and (name or method != "tools/list"):
            return rpc_error(
                request, _INVALID, f"there is no session {str(name)[:40]!r}: openenv/session/create opens one"
            )
        if method == "openenv/session/close" and session is not None:
            await self.end_session(session, "the client closed its session")
            return rpc_result(request, {"session_id": session.id, "closed": True})
        return await self.rpc(request, session or OpenEnvSession(self.desk))

    async def rpc(self, request: Mapping[str, Any], session: OpenEnvSession) -> dict[str, Any]:
        """Answer a request of JSON-RPC in a session: "tools/list" or "tools/call", which is a step."""
        method, params = request.get("method"), request.get("params") or {}
        session.last_use = time.monotonic()
        if method == "tools/list":
            entries = [{**tool, "inputSchema": tool["input_schema"]} for tool in tool_list(session.tools)]
            return rpc_result(request, {"tools": entries})
        if method != "tools/call" or not isinstance(params, dict):
            return rpc_error(request, _UNKNOWN_METHOD, f"there is no method {str(method)[:40]!r}")
        try:
            data = await session.call(params.get("name"), params.get("arguments") or {})
        except Refused as refusal:
            return rpc_error(request, _INVALID, str(refusal))
        except EpisodeFault as fault:
            return rpc_error(request, _SERVER_ERROR, f"{fault} ({fault_code(fault)})")
        finally:
            session.last_use = time.monotonic()
        observation = data["observation"]
        return rpc_result(request, {**observation["result"], "reward": data["reward"], "done": data["done"]})


def task_spec(task: Task) -> dict[str, Any]:
    """Return what a client may know of a task: not its target, and not its metadata, which may hold it."""
    return {"id": task.id, "prompt": list(task.prompt), **({"kind": task.kind} if task.kind else {})}


def rpc_result(request: Mapping[str, Any], result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.get("id"), "result": result}


def rpc_error(request: Mapping[str, Any], code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.get("id"), "error": {"code": code, "message": message}}
