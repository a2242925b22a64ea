"""Tools of MCP servers: over standard input and output, or streamable HTTP, through the `mcp` library.

Example::

    async with open_mcp("python -m my_server") as server:
        env.set_tools({tool.name: tool for tool in server.tools})
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from envs.tool_api.http.credentials import Credentials, headers_from_env
from envs.tool_api.json_schema.validation import SchemaArguments, shown
from envs.tool_api.mcp.connection import Session
from envs.tool_api.mcp.results import MCP_ERROR, result_text
from envs.tool_api.mcp.transport import Stderr, Transport, command_of, environment_of, is_url, stdio, streamable_http
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.tools import Tool, ToolOptions
from forge_env.core.types import ToolFailure
from forge_env.utils.deadlines import queued

_MAX_PAGES, _MAX_WORDS = 100, 500
_TOOL_ERRORS = (-32602, -32601)  # invalid parameters, no such method: what a caller can get wrong
_BROKEN = (-32000, -32600)  # connection closed, session not known any more: another one is needed


@asynccontextmanager
async def open_mcp(
    source: str,
    *,
    env: Sequence[str] = (),
    headers: Mapping[str, str] = {},
    prefix: str = "",
    call_seconds: float = 60.0,
    start_seconds: float = 60.0,
) -> AsyncIterator[McpServer]:
    """Connect to a server, start it if it is a command, and list its tools.

    Args:
        source: a command line, or a URL.
        env: names of environment variables that a command is given beside HOME, PATH and the like. Their values are
            redacted from what it answers.
        headers: header -> environment variable, for a URL; see `envs.tool_api.http.credentials.headers_from_env`.
        prefix: goes before the names of the tools.
        call_seconds: after which a call that is not answered is a fault.
        start_seconds: the same for the start.

    Raises:
        UserError: for a command that is not there, a variable that is not set, a tool whose schema is none.
        ServiceError: when the server does not come up.
    """
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise UserError("MCP servers need the package mcp: pip install 'forge-env[tools]'") from None
    server = McpServer(source, env=env, headers=headers, call_seconds=call_seconds, start_seconds=start_seconds)
    try:
        await server.open(prefix)
        yield server
    finally:
        await server.close()


class McpServer:
    """One server, and its tools. Belongs to the event loop that opened it.

    A connection that was lost is made anew by the next call, of a command by starting it again; what it remembered of
    earlier calls is gone then.
    """

    tools: list[Tool]

    def __init__(
        self,
        source: str,
        *,
        env: Sequence[str],
        headers: Mapping[str, str],
        call_seconds: float,
        start_seconds: float,
    ) -> None:
        self._source = source
        self._call_seconds, self._start_seconds = call_seconds, start_seconds
        self._command = [] if is_url(source) else command_of(source)
        self._env = environment_of(env)
        given = Credentials(secrets=frozenset(self._env.values()))
        self._credentials = headers_from_env(headers).joined(given)
        self._opening = asyncio.Lock()
        self._session: Session | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"McpServer({self._credentials.redact(self._source)!r})"

    async def open(self, prefix: str = "") -> None:
        """Connect, and list the tools.

        Raises:
            UserError: for a tool whose schema is none.
            ServiceError: when the server does not answer.
        """
        listed = await self._list()
        self.tools = []
        for each in listed:
            name = _tool_name(prefix + each.name, {tool.name for tool in self.tools})
            self.tools.append(self._tool(name, each))

    async def close(self) -> None:
        """End the connection, and the process if it is one; what is called from now on is a fault."""
        self._is_closed = True
        async with self._opening:
            await self._leave()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool by the server's name for it; returns what the model is told.

        Raises:
            ServiceError: when the server is dead or does not answer in time.
        """
        try:
            # What cannot be written would end the connection in the library, for all callers of it.
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        except ValueError as error:
            return ToolFailure(f"Error: the arguments are no JSON in UTF-8: {error}", kind="bad_arguments")
        try:
            result = await self._ask(lambda client: client.call_tool(name, dict(arguments)))
        except _Refused as refusal:
            return ToolFailure(f"Error: {self._credentials.redact(str(refusal))}", kind=MCP_ERROR)
        text = result_text(result)
        redacted = self._credentials.redact(text)
        return ToolFailure(redacted, kind=text.kind) if isinstance(text, ToolFailure) else redacted

    async def _list(self) -> list[Any]:
        listed: list[Any] = []
        cursor = None
        for _ in range(_MAX_PAGES):
            page = await self._ask(lambda client, cursor=cursor: client.list_tools(cursor=cursor))
            listed += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        return listed

    def _tool(self, name: str, listed: Any) -> Tool:
        where = f"the tool {listed.name!r:.100} of the MCP server {self._source!r}"
        schema = dict(listed.input_schema)
        hints = listed.annotations
        is_read = hints is not None and hints.read_only_hint is True
        # Longer than a call may take, so that a server that is too slow is a fault and not an observation.
        options = ToolOptions(
            timeout=self._call_seconds + self._start_seconds + 5, idempotent=is_read, parallel=is_read
        )
        return Tool(
            name=name,
            description=(listed.description or listed.title or listed.name).strip(),
            parameters=shown(schema),
            arguments=SchemaArguments(schema, where=where),
            function=_Call(self, listed.name).run,
            options=options,
        )

    async def _ask(self, request: Any) -> Any:
        """Send a request over the session.

        Raises:
            _Refused: when the server says that the request is wrong.
            ServiceError: when it is dead or does not answer in time.
        """
        from mcp import MCPError

        session = await self._connected()
        try:
            async with asyncio.timeout(self._call_seconds):
                return await request(session.client)
        except TimeoutError:
            problem = f"did not answer within {self._call_seconds:g} s"
            raise ServiceError(self._credentials.redact(f"the MCP server {self._source!r} {problem}")) from None
        except MCPError as error:
            if error.code in _TOOL_ERRORS or error.code > -32000:
                raise _Refused(error.message) from None
            session.is_broken = session.is_broken or error.code in _BROKEN
            raise ServiceError(self._told(session, f"failed: {error.message}")) from None
        except Exception as error:  # of the library: a result that breaks its own schema, a stream that closed
            raise ServiceError(self._told(session, f"failed: {type(error).__name__}: {error}")) from None

    async def _connected(self) -> Session:
        """Return the session; one for all callers, and another one if it is lost.

        No clock of an episode runs meanwhile: callers wait for each other, and a start has a deadline of its own.
        """
        async with queued(), self._opening:
            if self._is_closed:
                raise ServiceError(self._credentials.redact(f"the MCP server {self._source!r} is closed"))
            if self._session is not None and self._session.is_broken:
                await self._leave()
            if self._session is None:
                self._session = await self._start()
            return self._session

    async def _leave(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _start(self) -> Session:
        stderr = Stderr()
        session = Session(self._transport(stderr), stderr)
        try:
            await session.open(self._start_seconds)
        except ServiceError as error:
            raise ServiceError(self._told(session, str(error))) from None
        return session

    def _transport(self, stderr: Stderr) -> Transport:
        if self._command:
            return stdio(self._command, self._env, stderr)
        return streamable_http(self._source, self._credentials, self._call_seconds)

    def _told(self, session: Session, problem: str) -> str:
        words = self._credentials.redact(session.stderr.text)[-_MAX_WORDS:]
        tail = f" Its last words: {words}" if words else ""
        return self._credentials.redact(f"the MCP server {self._source!r} {problem[:_MAX_WORDS]}.") + tail


class _Refused(Exception):
    """The server says that a request is wrong."""


class _Call:
    """What runs when a tool is called."""

    __slots__ = ("_name", "_server")

    def __init__(self, server: McpServer, name: str) -> None:
        self._server = server
        self._name = name

    async def run(self, /, **arguments: Any) -> str:
        return await self._server.call(self._name, arguments)


def _tool_name(wanted: str, taken: Collection[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", wanted)[:64] or "tool"
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name[: 63 - len(str(number))]}_{number}"
    return free
