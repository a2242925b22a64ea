"""Serves an environment as an MCP server (streamable HTTP): its tools, one that gives the task, one that answers it.

A session is an episode. `start_task` begins it and returns the prompt; each call of a tool of the environment is a
turn; `answer` writes a message without a call. The result of the last call says how the episode has ended, and the
server records it. The `mcp` library keeps the sessions, by the handshake that protocol versions up to 2025-11-25 have:
later versions have no sessions, and their clients fall back.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from contrib.common.http_server import Receive, Send, has_token, send_json
from contrib.common.server_settings import ServeSettings
from contrib.serve.client_episode import ClientEpisode, EpisodeFault, EpisodeOver, Shown
from contrib.serve.desk import Desk, PlayOptions, open_desk
from contrib.serve.tool_face import action_of, free_name, names_of, text_of, tool_list
from forge_env import __version__
from forge_env.core.errors import UserError
from forge_env.core.types import ToolSpec
from forge_env.rollout.factory import EnvFactory

PATH = "/mcp"
START = "start_task"
KEPT = 4096
"""Number of ended sessions that are remembered, so that they do not begin a second episode."""
_START_TEXT = "Begin the task of this session, and read it. Call this first, and once."
_START_SCHEMA = {
    "type": "object",
    "properties": {
        "split": {"type": "string", "description": "Where the task is from, such as train or test."},
        "index": {"type": "integer", "minimum": 0, "description": "Which task of the split; else the next one."},
        "seed": {"type": "integer", "minimum": 0, "description": "Of the episode; without an index also of the task."},
    },
    "additionalProperties": False,
}


@asynccontextmanager
async def open_app(factory: EnvFactory, settings: ServeSettings, play: PlayOptions) -> AsyncIterator[McpApp]:
    """Open the ASGI app of an environment with an open factory; at the end all its sessions are ended."""
    try:
        from mcp.server.lowlevel.server import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    except ImportError:
        raise UserError("serving by MCP needs the package mcp: pip install 'forge-env[tools]'") from None
    async with open_desk(factory, "mcp", settings, play) as desk:
        sessions = Sessions(desk)
        server: Any = Server(
            f"forge_env {factory.name}",
            version=__version__,
            instructions=f"Call {START} first: it returns the task. The result of the last call says that it is over.",
            on_list_tools=sessions.list_tools,
            on_call_tool=sessions.call_tool,
        )
        manager = StreamableHTTPSessionManager(
            server,
            session_idle_timeout=settings.idle_seconds,
            max_request_body_size=settings.max_request_bytes,
            max_sessions=settings.max_sessions,
        )
        async with manager.run():
            try:
                yield McpApp(desk, sessions, manager)
            finally:
                await desk.close()  # calls that wait for their episode are answered while the sessions are there


class Sessions:
    """The episodes of the sessions, by the id that the `mcp` library gives them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._episodes: OrderedDict[str, ClientEpisode] = OrderedDict()
        self._starting: set[str] = set()
        """Sessions whose task is being chosen."""
        self._tools: dict[str, Sequence[ToolSpec]] = {}
        """Of a session with tools that differ from the common ones."""

    async def list_tools(self, context: Any, params: Any) -> Any:
        import mcp_types

        tools = self._tools_of(_session_id(context))
        start = {"name": free_name(START, names_of(tools)), "description": _START_TEXT, "input_schema": _START_SCHEMA}
        return mcp_types.ListToolsResult(tools=[mcp_types.Tool(**tool) for tool in (start, *tool_list(tools))])

    async def call_tool(self, context: Any, params: Any) -> Any:
        session, name, arguments = _session_id(context), params.name, dict(params.arguments or {})
        tools = self._tools_of(session)
        try:
            if name == free_name(START, names_of(tools)):
                step = await self._start(session, arguments)
            else:
                if session not in self._episodes:
                    raise ValueError(f"this session has no task yet: call {free_name(START, names_of(tools))} first")
                step = await self._episodes[session].answer(action_of(name, arguments, tools))
        except (ValueError, UserError) as error:
            return _result(f"Error: {error}", is_error=True)
        except EpisodeOver as over:
            return _result(f"Error: {over}; open another session for another task", is_error=True)
        except EpisodeFault as fault:
            return _result(f"Error: the episode has ended without a reward: {fault}", is_error=True, fault=str(fault))
        if list(step.tools) != list(tools):
            self._tools[session] = list(step.tools)
            await context.session.send_tool_list_changed()
        return _step_result(step)

    async def end(self, session: str) -> None:
        self._tools.pop(session, None)
        self._starting.discard(session)
        if (episode := self._episodes.get(session)) is not None:
            await episode.end("the client ended its session before the end of the episode")

    def _tools_of(self, session: str) -> Sequence[ToolSpec]:
        return self._tools.get(session, self._desk.tools)

    async def _start(self, session: str, arguments: Mapping[str, Any]) -> Shown:
        if session in self._episodes or session in self._starting:
            raise ValueError("this session has its task already: open another session for another one")
        if unknown := sorted(arguments.keys() - _START_SCHEMA["properties"].keys()):  # type: ignore[attr-defined]
            raise ValueError(f"{START} has no argument {unknown[0]!r:.40}: it takes split, index and seed")
        self._starting.add(session)
        try:
            choice = await self._desk.choose(arguments)
            if session not in self._starting:
                raise ValueError("the session was ended while its task was chosen")
        finally:
            self._starting.discard(session)
        episode = self._episodes[session] = self._desk.begin(choice)
        self._forget()
        return await episode.begin()

    def _forget(self) -> None:
        for name in [name for name, episode in self._episodes.items() if episode.has_ended][:-KEPT]:
            del self._episodes[name]
            self._tools.pop(name, None)


class McpApp:
    """The ASGI app: the token, the version of the protocol, and the `mcp` library behind it."""

    path = PATH

    def __init__(self, desk: Desk, sessions: Sessions, manager: Any) -> None:
        from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
        from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

        self.desk, self.failure = desk, desk.failure
        self._sessions, self._manager = sessions, manager
        self._versions, self._other_version = HANDSHAKE_PROTOCOL_VERSIONS, UNSUPPORTED_PROTOCOL_VERSION

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        if not has_token(headers, self.desk.settings.token):
            await _refuse(send, 401, -32600, "the token is wrong or missing: send it as Authorization: Bearer TOKEN")
        elif scope["path"].rstrip("/") != PATH:
            await _refuse(send, 404, -32600, f"there is no {scope['path']!r:.80}: the MCP server is at {PATH}")
        elif version and version not in self._versions:
            versions = list(self._versions)
            message = f"this server speaks the versions {', '.join(versions)} of MCP, which have sessions"
            data = {"supported": versions, "requested": version[:40]}
            await _refuse(send, 400, self._other_version, message, data)
        else:
            await self._manager.handle_request(scope, receive, send)
            if scope["method"] == "DELETE":
                await self._sessions.end(headers.get(b"mcp-session-id", b"").decode("latin-1"))


def _session_id(context: Any) -> str:
    return str(context.request.headers.get("mcp-session-id", ""))


def _step_result(step: Shown) -> Any:
    record, text = step.episode, text_of(step.messages)
    if record is None:
        return _result(text, is_error=step.is_error)
    verdict = "" if record.success is None else ", a success" if record.success else ", no success"
    end = f"The episode is over: {record.outcome}, reward {record.reward:g}{verdict}."
    facts = {
        "done": True,
        "reward": record.reward,
        "rewards": dict(record.rewards),
        "outcome": str(record.outcome),
        "success": record.success,
        "episode": record.id,
    }
    return _result(f"{text}\n\n{end}".strip(), is_error=False, **facts)


def _result(text: str, *, is_error: bool, **facts: Any) -> Any:
    """Return the result of a tool call; the facts are its structured content."""
    from mcp_types import CallToolResult, TextContent

    safe_text = text.encode(errors="replace").decode()  # a lone surrogate cannot be sent
    content = [TextContent(type="text", text=safe_text)]
    return CallToolResult(content=content, is_error=is_error, structured_content=facts or None)


async def _refuse(send: Send, status: int, code: int, message: str, data: Any = None) -> None:
    """Send an error of JSON-RPC that belongs to no request."""
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    await send_json(send, status, body, [(b"www-authenticate", b"Bearer")] if status == 401 else [])
