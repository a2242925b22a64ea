"""Tools of MCP servers: over standard input and output, or streamable HTTP, through the `mcp` library."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from contrib.apis.http.client import is_url
from contrib.apis.http.credentials import Credentials, headers_from_env, secret_from_env
from contrib.apis.json_schema.validation import SchemaArguments, output_check
from contrib.apis.mcp.connection import McpConnection
from contrib.apis.mcp.pages import all_pages
from contrib.apis.mcp.results import OUTPUT_SCHEMA
from contrib.apis.mcp.transport import Stderr, Transport, command_of, stdio, streamable_http
from contrib.apis.tool_names import free_name
from contrib.common.json_text import write
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.json_text import with_marks
from forge_env.core.tool_arguments import without_titles
from forge_env.core.tools import Tool, ToolOptions
from forge_env.core.types import ToolFailure
from forge_env.utils.deadlines import queued

MCP_ERROR = "mcp_error"
"""Kind of the `ToolFailure` of a call that the server answered with an error."""
_MAX_WORDS = 500
# What the library says of a connection over HTTP comes with codes of JSON-RPC, as the server's own errors do: only the
# words tell them apart.
_CLOSED = "Connection closed"
_SESSION_LOST = re.compile(
    r"(?i)\bsession (id )?((was |has )?(not found|not valid|terminated|expired|closed|invalid)|does not exist)"
    r"|\b(no valid|invalid|unknown|missing|no such) (mcp[- ])?session"
)
_UNANSWERED = re.compile(
    r"Server returned an error response|Not Found$|Unexpected content type|Failed to parse |SSE stream |Redirect to "
    r"|server answered a request with 202"
)

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_mcp(
    source: str,
    *,
    env: Sequence[str] = (),
    headers: Mapping[str, str] = {},
    call_seconds: float = 60.0,
    start_seconds: float = 60.0,
    transport: Callable[[Stderr], Transport] | None = None,
) -> AsyncIterator[McpServer]:
    """Connect to a server, start it if it is a command, and list its tools.

    Args:
        source: a command line, or a URL.
        env: names of environment variables for a command, beside HOME, PATH and the like. Their values are redacted
            from its results.
        headers: header -> environment variable, for a URL; see `contrib.apis.http.credentials.headers_from_env`.
        call_seconds: limit of a call; a longer one is a fault.
        start_seconds: limit of the start.
        transport: how the server is reached, where `source` is only what it is called; makes one for each connection.
    """
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise UserError("MCP servers need the package mcp: pip install 'forge-env[tools]'") from None
    server = McpServer(source, env, headers, call_seconds, start_seconds, transport)
    try:
        await server.open()
        yield server
    finally:
        await server.close()


class McpServer:
    """One server, and its tools. Belongs to the event loop that opened it.

    After a lost connection the next call connects again, and starts a command again. What the server had stored of
    earlier calls is lost then.
    """

    tools: list[Tool]

    def __init__(
        self,
        source: str,
        env: Sequence[str],
        headers: Mapping[str, str],
        call_seconds: float,
        start_seconds: float,
        transport: Callable[[Stderr], Transport] | None = None,
    ) -> None:
        self._source, self._is_command = source, not is_url(source)
        self._call_seconds, self._start_seconds = call_seconds, start_seconds
        self._command = command_of(source) if self._is_command and transport is None else []
        self._transport_of = transport or self._usual_transport
        # Beside those that the library passes to every server: HOME, PATH and the like.
        self._env = {name: secret_from_env(name) for name in env}
        secrets_of_env = Credentials(secrets=frozenset(self._env.values()))
        self._credentials = headers_from_env(headers).join(secrets_of_env)
        self._opening = asyncio.Lock()
        self._connection: McpConnection | None = None
        self._is_closed = False
        self._output_checks: dict[str, Callable[[Any], str]] = {}

    def __repr__(self) -> str:
        return f"McpServer({self._credentials.redact(self._source)!r})"

    async def open(self) -> None:
        listed_tools = await self._list()
        schemas = {tool.name: (tool.meta or {}).get(OUTPUT_SCHEMA) for tool in listed_tools}
        self._output_checks = {name: output_check(schema) for name, schema in schemas.items() if schema is not None}
        self.tools = []
        for listed_tool in listed_tools:
            name = free_name(listed_tool.name, {tool.name for tool in self.tools})
            self.tools.append(self._tool(name, listed_tool))

    async def close(self) -> None:
        """Close the connection, and end the process of a command. Later calls are faults."""
        self._is_closed = True
        async with self._opening:
            await self._disconnect()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool by the server's name for it; return the text for the model."""
        try:
            # An error while writing would end the connection in the library, for all of its callers.
            write(arguments, ensure_ascii=False, allow_nan=False).encode()
        except ValueError as error:
            return ToolFailure(f"Error: the arguments are no JSON in UTF-8: {error}", kind="bad_arguments")
        try:
            result = await self._ask(lambda client: client.call_tool(name, with_marks(arguments)))
        except _CallRefused as refusal:
            return ToolFailure(f"Error: {self._credentials.redact(str(refusal))}", kind=MCP_ERROR)
        text = self._credentials.redact(result.content[0].text)
        if result.is_error:
            return ToolFailure(f"Error: {text or 'the tool failed and did not say why'}", kind=MCP_ERROR)
        self._warn_of_output(name, result.structured_content)
        return text or "OK (no content)"

    def _warn_of_output(self, name: str, structure: Any) -> None:
        """Tell the author once that a result breaks its outputSchema. The model is shown its text all the same."""
        check = self._output_checks.get(name)
        problem = check(structure) if check and structure is not None else "it has no structuredContent"
        if check and problem:
            del self._output_checks[name]
            tool = f"the tool {name!r:.100} of the MCP server {self._source!r}"
            text = f"{tool} breaks its own outputSchema: {problem.rstrip('.')}. The model gets its text all the same"
            logger.warning("%s", self._credentials.redact(text))

    async def _list(self) -> list[Any]:
        async def page(cursor: str | None) -> tuple[list[tuple[str, Any]], str | None]:
            try:
                answer = await self._ask(lambda client: client.list_tools(cursor=cursor))
            except _CallRefused:
                if cursor != "":
                    raise
                return [], None  # the server writes "" for the end
            return [(tool.name, tool) for tool in answer.tools], answer.next_cursor

        server = self._credentials.redact(f"the MCP server {self._source!r}")
        try:
            return await all_pages(page, server)
        except _CallRefused as refusal:
            problem = f"does not list its tools: {refusal!s:.500}"
            raise ServiceError(f"{server} {self._credentials.redact(problem)}") from None

    def _tool(self, name: str, entry: Any) -> Tool:
        async def call(**arguments: Any) -> str:
            return await self.call(entry.name, arguments)

        where = f"the tool {entry.name!r:.100} of the MCP server {self._source!r}"
        schema = dict(entry.input_schema)
        hints = entry.annotations
        is_read = hints is not None and hints.read_only_hint is True
        # Longer than a call may take, so that a slow server is a fault of the episode and not a result.
        options = ToolOptions(
            timeout=self._call_seconds + self._start_seconds + 5, idempotent=is_read, parallel=is_read
        )
        return Tool(
            name=name,
            description=(entry.description or entry.title or entry.name).strip(),
            parameters=without_titles(schema),
            arguments=SchemaArguments(schema, where=where),
            function=call,
            options=options,
        )

    async def _ask(self, request: Any) -> Any:
        from mcp import MCPError

        connection = await self._open_connection()
        try:
            async with asyncio.timeout(self._call_seconds):
                return await request(connection.client)
        except TimeoutError:
            problem = f"did not answer within {self._call_seconds:g} s"
            raise ServiceError(self._credentials.redact(f"the MCP server {self._source!r} {problem}")) from None
        except MCPError as error:
            is_lost = error.message == _CLOSED or (not self._is_command and _SESSION_LOST.search(error.message))
            if not is_lost and (self._is_command or not _UNANSWERED.match(error.message)):
                raise _CallRefused(error.message or f"error {error.code}") from None
            connection.is_broken = connection.is_broken or bool(is_lost)
            raise ServiceError(self._message(connection, f"failed: {error.message}")) from None
        except Exception as error:  # of the library: a result that breaks its schema, a closed stream
            raise ServiceError(self._message(connection, f"failed: {type(error).__name__}: {error}")) from None

    async def _open_connection(self) -> McpConnection:
        """Return the connection; open one if there is none, or if it is lost.

        The deadlines of an episode are suspended: callers wait for each other, and the start has its own limit.
        """
        async with queued(), self._opening:
            if self._is_closed:
                raise ServiceError(self._credentials.redact(f"the MCP server {self._source!r} is closed"))
            if self._connection is not None and self._connection.is_broken:
                await self._disconnect()
            if self._connection is None:
                self._connection = await self._start()
            return self._connection

    async def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def _start(self) -> McpConnection:
        stderr = Stderr()
        connection = McpConnection(self._transport_of(stderr), stderr)
        try:
            await connection.open(self._start_seconds)
        except ServiceError as error:
            raise ServiceError(self._message(connection, str(error))) from None
        return connection

    def _usual_transport(self, stderr: Stderr) -> Transport:
        if self._command:
            return stdio(self._command, self._env, stderr)
        return streamable_http(self._source, self._credentials, self._call_seconds)

    def _message(self, connection: McpConnection, problem: str) -> str:
        words = self._credentials.redact(connection.stderr.text)[-_MAX_WORDS:]
        tail = f" Its last words: {words}" if words else ""
        return self._credentials.redact(f"the MCP server {self._source!r} {problem[:_MAX_WORDS]}.") + tail


class _CallRefused(Exception):
    """The server answers with an error: its own, since the connection lives."""
