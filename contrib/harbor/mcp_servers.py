"""The MCP servers of a Harbor task: those that are started run in the agent's workspace, the others are elsewhere.

A server elsewhere is reached through a proxy like the agent's own, but for the port: it leads where the agent may go.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from contrib.apis.http.credentials import Credentials
from contrib.apis.mcp.tools import MCP_ERROR, open_mcp
from contrib.apis.mcp.transport import Stderr, Transport, server_sent_events, streamable_http
from contrib.apis.tool_names import ToolNames
from contrib.harbor.config import McpServer, resolved, server_address
from contrib.harbor.mcp_in_workspace import stdio_in_workspace
from contrib.workspaces.contract import Network
from contrib.workspaces.machines.proxy import Allowlist, Proxy
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import ServiceError
from forge_env.core.tools import Tool
from forge_env.core.types import ToolFailure

_CALL_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where servers are started: in a workspace, as the agent's own commands are."""

    workspace: Workspace
    user: str | int | None
    env: Mapping[str, str]
    cwd: str


async def open_servers(
    stack: AsyncExitStack, servers: Sequence[McpServer], place: Place, *, other_names: Iterable[str], network: Network
) -> Mapping[str, Tool]:
    """Connect to servers until the stack is closed, and return their tools by name.

    Args:
        network: of the agent.
        other_names: names of other tools; a tool with such a name gets the name of its server as a prefix.
    """
    tools, names = {}, ToolNames(other_names)
    for server in {server.name: server for server in servers}.values():  # the last one of a name counts, as in Harbor
        is_inside = server.transport == "stdio"
        transport = _inside(server, place) if is_inside else await _elsewhere(stack, server, network)
        source = server.name if is_inside else str(server.url)
        mcp_server = await stack.enter_async_context(open_mcp(source, transport=transport, call_seconds=_CALL_SECONDS))
        own = names.of(f"mcp:{server.name}", [tool.name for tool in mcp_server.tools])
        for tool in mcp_server.tools:
            function = functools.partial(_call, tool.function) if is_inside else tool.function
            tools[own[tool.name]] = replace(tool, name=own[tool.name], function=function)
    return tools


def configured(servers: Sequence[McpServer]) -> dict[str, dict[str, Any]]:
    return {server.name: _settings(server) for server in servers}


def _settings(server: McpServer) -> dict[str, Any]:
    if server.transport == "stdio":
        return {"type": "stdio", "command": server.command, "args": server.args}
    kind = "http" if server.transport == "streamable-http" else server.transport
    return {"type": kind, "url": server.url, "headers": _headers(server)}


def _headers(server: McpServer) -> dict[str, str]:
    return resolved(server.headers, where=f"the MCP server {server.name!r}")


def _inside(server: McpServer, place: Place) -> Callable[[Stderr], Transport]:
    command = [str(server.command), *server.args]
    return lambda stderr: stdio_in_workspace(
        place.workspace, command, stderr, user=place.user, env=place.env, cwd=place.cwd
    )


async def _elsewhere(stack: AsyncExitStack, server: McpServer, network: Network) -> Callable[[Stderr], Transport]:
    _, port = server_address(server)
    hosts, own = (
        [entry if ":" in entry else f"{entry}:{port}" for entry in entries]
        for entries in (network.allowed_hosts, network.own_hosts)
    )
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(Allowlist(hosts, own))
    await proxy.start(listener)
    stack.push_async_callback(proxy.close)
    credentials = Credentials().with_headers(_headers(server))
    make = streamable_http if server.transport == "streamable-http" else server_sent_events
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    return lambda stderr: make(str(server.url), credentials, _CALL_SECONDS, address)


async def _call(function: Callable[..., Awaitable[Any]], /, **arguments: Any) -> Any:
    """Call a server that the agent may have ended or changed: its failure is a result, and no fault of the episode."""
    try:
        return await function(**arguments)
    except ServiceError as error:
        return ToolFailure(f"Error: {error}", kind=MCP_ERROR)
