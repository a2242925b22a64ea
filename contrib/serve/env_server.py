"""Serves an environment over HTTP: one process, many episodes. See `contrib.serve.remote.wire` for the protocol."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from contrib.common.http_server import (
    JSON_TYPE,
    NO_STORE,
    Receive,
    RequestRefused,
    Send,
    exact_json,
    has_token,
    open_server,
    read_object,
    send_json,
)
from contrib.common.server_settings import ServeSettings
from contrib.serve.remote import wire
from contrib.serve.remote.wire import About, Answer
from contrib.serve.session import Session
from forge_env.core.env import Env
from forge_env.core.errors import ForgeError, UserError
from forge_env.core.user_code import guard
from forge_env.evaluation.digests import environment_digests
from forge_env.registry.registry import env_class
from forge_env.rollout.factory import EnvFactory, make
from forge_env.utils.digests import value_digest
from forge_env.utils.threads import invoke

CLOSE_SECONDS = 30.0
"""Time limit for closing an instance after its client is gone."""
KEPT_ANSWERS = 4096
"""Number of ended sessions with a stored last answer, for a client that asks again because it did not arrive."""
_HEADERS = (NO_STORE, (wire.HEADER.encode(), str(wire.PROTOCOL).encode()))
_SESSION_ID = re.compile(r"[0-9a-f]{32}")
logger = logging.getLogger(__name__)


async def serve_env(
    opener: Callable[..., AbstractAsyncContextManager[Any]],
    env: str,
    options: Mapping[str, Any],
    settings: ServeSettings,
    announce: Callable[[str], None],
) -> None:
    """Serve an environment until this coroutine is cancelled, or the server fails.

    Args:
        opener: the `open_app` of a protocol, of (factory, settings).
        env: name of the environment.
        options: of the environment.
        settings: of the server.
        announce: called with the URL once the server listens.
    """
    if env_class(env)._episode_player is not None:
        raise UserError(
            f"the environment {env} has turns that run at once, which this protocol does not carry: run it where its "
            "agent runs, or serve the agent with --agent"
        )
    factory = make(env, **options)
    async with (
        factory,
        opener(factory, settings) as app,
        open_server(app, settings.host, settings.port, ws_max_size=settings.max_request_bytes) as server,
    ):
        announce(server.url + app.path)
        await app.failure


@asynccontextmanager
async def open_app(factory: EnvFactory, settings: ServeSettings) -> AsyncIterator[EnvApp]:
    """Open the ASGI app of an environment with an open factory; at the end all its sessions are closed."""
    app = EnvApp(factory, settings)
    sweeper = asyncio.create_task(app.end_idle())
    try:
        yield app
    finally:
        sweeper.cancel()
        await app.close()


def about(factory: EnvFactory) -> About:
    cls = factory.env_class
    facts: dict[str, Any] = {
        "name": factory.name,
        "tools": list(cls.tools) if not isinstance(cls.tools, property) else [],
        # An instance tells its own where a property stands.
        "truncation_reward": (Env if isinstance(cls.truncation_reward, property) else cls).truncation_reward,
        "time_spent_by": cls.time_spent_by,
        "limits": factory.declared_limits(),
        "effects": factory.effects(),
        "digests": environment_digests(factory),
        "has_expert": hasattr(cls, "expert"),
        "has_cheats": hasattr(cls, "cheats"),
        "has_success": cls.success is not Env.success,
        "has_on_limit": cls.on_limit is not Env.on_limit,
    }
    return About(id=value_digest(facts), **facts)


class EnvApp:
    """The ASGI app: the sessions that are open, and what answers a request."""

    path = ""

    def __init__(self, factory: EnvFactory, settings: ServeSettings) -> None:
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._factory = factory
        self._settings = settings
        self._about = about(factory)
        self._sessions: dict[str, Session] = {}
        self._past_sessions: dict[str, Session] = {}
        """Closed ones, which hold only the answer to their last call."""
        self._tasks_lock = asyncio.Lock()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._respond(scope, receive, send)
        except RequestRefused as refusal:
            await send_json(send, refusal.status, json.dumps({"error": str(refusal)}).encode(), _HEADERS)

    async def end_idle(self) -> None:
        """End sessions that no request has used for `idle_seconds`, for ever."""
        limit = self._settings.idle_seconds
        while True:
            await asyncio.sleep(min(limit / 4, 30.0))
            oldest = time.monotonic() - limit
            idle = {name: s for name, s in self._sessions.items() if not s.waiting and s.last_use < oldest}
            await self._end(idle)

    async def close(self) -> None:
        await self._end(dict(self._sessions))

    async def _end(self, sessions: Mapping[str, Session]) -> None:
        for name in sessions:
            del self._sessions[name]
        ends = [session.end(CLOSE_SECONDS) for session in sessions.values()]
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(error, BaseException):
                logger.error("a session did not end in order", exc_info=error)

    async def _respond(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        self._check(headers)
        method, path = scope["method"], scope["path"].rstrip("/")
        if method in ("GET", "HEAD") and path == wire.PATH:
            facts = {name: getattr(self._about, name) for name in About.__slots__}
            await send_json(send, 200, json.dumps(facts).encode(), _HEADERS)
            return
        if method != "POST":
            raise RequestRefused(405, f"the method is {method!r:.20}; calls are posted")
        request = await read_object(headers, receive, self._settings.max_request_bytes, exact_json)
        place = path.removeprefix(f"{wire.PATH}/")
        if place.startswith("sessions/"):
            await self._call(place.removeprefix("sessions/"), request, send)
        elif place in _QUESTIONS:
            await _send_when_done(send, asyncio.create_task(self._ask(_QUESTIONS[place], request)))
        else:
            raise RequestRefused(404, f"there is no {path!r:.80}: this is a server of environments, not of agents")

    def _check(self, headers: Mapping[bytes, bytes]) -> None:
        """Check the version first: another one may do anything else in another way."""
        version = headers.get(wire.HEADER.encode(), b"").decode("latin-1")
        if version != str(wire.PROTOCOL):
            wording = f"version {version}" if version else "none"
            raise RequestRefused(
                426,
                f"this server speaks version {wire.PROTOCOL} of the protocol of forge_env, and the request {wording}",
            )
        if not has_token(headers, self._settings.token):
            raise RequestRefused(401, "the token is wrong or missing")

    async def _call(self, name: str, request: Mapping[str, Any], send: Send) -> None:
        session = self._session(name, request)
        session.waiting += 1
        try:
            await _send_when_done(send, session.call(request))
        finally:
            session.waiting -= 1
            session.last_use = time.monotonic()
            if session.is_closed and name in self._sessions:
                del self._sessions[name]
                self._past_sessions[name] = session
                if len(self._past_sessions) > KEPT_ANSWERS:
                    del self._past_sessions[next(iter(self._past_sessions))]

    def _session(self, name: str, request: Mapping[str, Any]) -> Session:
        if session := self._sessions.get(name) or self._past_sessions.get(name):
            return session
        if not _SESSION_ID.fullmatch(name):
            raise RequestRefused(400, "the name of a session is 32 digits of 0-9 and a-f")
        if request.get("number") != 1 or request.get("call") != "reset":
            why = f"the server was restarted, or had no request of it for {self._settings.idle_seconds:g} s"
            raise RequestRefused(410, f"there is no such session: {why}")
        if request.get("about") != self._about.id:
            raise RequestRefused(410, f"the server now serves another environment or version, of {self._about.name}")
        if len(self._sessions) >= self._settings.max_sessions:
            most = self._settings.max_sessions
            raise RequestRefused(503, f"all {most} sessions are in use: --max-sessions of the server sets how many")
        session = self._sessions[name] = Session(self._factory, max_seconds=self._settings.idle_seconds)
        return session

    async def _ask(self, question: _Question, request: Mapping[str, Any]) -> bytes:
        """Answer a question about the environment, which needs no instance."""
        try:
            return Answer(result=await question(self, request)).dump()
        except ForgeError as error:
            return Answer(fault=wire.fault_data(error)).dump()

    async def _tasks(self, request: Mapping[str, Any]) -> list[Any]:
        split, count, seed = request["split"], int(request["count"]), int(request["seed"])
        async with self._tasks_lock:
            tasks = await invoke(self._factory.tasks, split, count=count, seed=seed)
        return [wire.task_data(task) for task in tasks]

    async def _expert(self, request: Mapping[str, Any]) -> Any:
        expert: Any = getattr(self._factory.env_class, "expert")  # noqa: B009  Env has none
        with guard("expert"):
            return await invoke(expert, request["messages"])

    async def _cheats(self, request: Mapping[str, Any]) -> list[Any]:
        cheats: Any = getattr(self._factory.env_class, "cheats")  # noqa: B009
        with guard("cheats"):
            return list(await invoke(cheats, wire.task_from(request["task"])))


_Question = Callable[[EnvApp, Mapping[str, Any]], Any]
_QUESTIONS: Mapping[str, _Question] = {"tasks": EnvApp._tasks, "expert": EnvApp._expert, "cheats": EnvApp._cheats}


async def _send_when_done(send: Send, call: asyncio.Task[bytes]) -> None:
    """Send what a call returns; a space every few seconds until then. A lost connection does not end the call."""
    await asyncio.wait({call}, timeout=wire.BEAT_SECONDS)
    if call.done():
        await send_json(send, 200, _body(call), _HEADERS)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [JSON_TYPE, *_HEADERS]})
    while not call.done():
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        await asyncio.wait({call}, timeout=wire.BEAT_SECONDS)
    await send({"type": "http.response.body", "body": _body(call)})


def _body(call: asyncio.Task[bytes]) -> bytes:
    """Return what a call returned. A failure of the server itself is a fault of the machinery for the client."""
    if call.cancelled():
        return Answer(fault={"kind": "infra", "type": "ServiceError", "text": "the server ended this session"}).dump()
    if (error := call.exception()) is not None:
        logger.error("a call failed", exc_info=error)
        text = f"the server of the environment failed: {type(error).__name__}: {error}"
        return Answer(fault={"kind": "infra", "type": "ServiceError", "text": text}).dump()
    return call.result()
