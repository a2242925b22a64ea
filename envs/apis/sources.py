"""Turns what a user types into tools: registered names, functions in files, OpenAPI documents, MCP servers.

    add                                               a registered name
    path/to/file.py:fn    package.module:fn           a function, or a class of tools
    openapi:https://api.example.com/openapi.json      every operation of a document, from a URL or a file;
    openapi:shop.yaml#https://shop.example.com        behind # where its service is, if the document does not say it
    mcp:python -m my_server                           the tools of an MCP server that is started,
    mcp:https://example.com/mcp                       and of one that runs

Credentials stand in environment variables, and are named as HOST/HEADER=VARIABLE, for example
``api.example.com/Authorization=Bearer ${API_TOKEN}``; in place of the header, a security scheme of the document.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from envs.apis.http import ApiClient
from envs.apis.mcp_tools import open_mcp
from envs.apis.mcp_transport import is_url
from envs.apis.openapi import OpenApi
from envs.apis.pool import ApiSettings
from forge_env.errors import UserError
from forge_env.registry import tools_of
from forge_env.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The tools of all sources, for as long as they are open; any number of episodes may share them."""

    tools: dict[str, Tool]
    client: ApiClient
    """Its connections, limits and cassette, for services of the caller's own."""
    origins: dict[str, str] = field(default_factory=dict)
    """Tool -> the source that it is from."""
    services: list[tuple[OpenApi, ApiClient]] = field(default_factory=list)
    """The documents, each with the client of its service."""

    def episode_tools(self) -> dict[str, Tool]:
        """Return the tools for one episode, which has a place of its own in a cassette; without one, those of all."""
        if self.client.settings.cassette_mode == "off":
            return self.tools
        own = [tool for api, service in self.services for tool in api.tools(service.with_headers({}))]
        return {**self.tools, **{tool.name: tool for tool in own}}


@asynccontextmanager
async def open_sources(
    tools: Sequence[str] = (),
    *,
    auth: Sequence[str] = (),
    mcp_env: Sequence[str] = (),
    requests_per_second: float | None = None,
    host_concurrency: int = 32,
    cassette: str = "",
    cassette_mode: str = "auto",
) -> AsyncIterator[Sources]:
    """Open the sources of tools, and close them when left.

    Args:
        tools: as this module says.
        auth: credentials, as this module says.
        mcp_env: names of environment variables that MCP servers are started with, beside HOME, PATH and the like.
        requests_per_second: for each host that is called over HTTP; None for any number.
        host_concurrency: requests at once, for each host.
        cassette: file of recorded answers; see `envs.apis.cassette`. MCP servers are not recorded.
        cassette_mode: "auto", "replay" or "record".

    Raises:
        UserError: for a source that cannot be had, and two tools of one name.
        ServiceError: when an MCP server does not come up.
    """
    credentials = parse_auth(auth)
    settings = ApiSettings(
        requests_per_second=requests_per_second,
        concurrency=host_concurrency,
        cassette=cassette,
        cassette_mode=cassette_mode if cassette else "off",
    )
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(settings))
        sources = Sources(tools={}, client=client)
        for source in tools:
            for tool in await _tools(source.strip(), sources, credentials, mcp_env, stack):
                _add(sources, source, tool)
        yield sources


def parse_auth(auth: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return header -> template, by host.

    Raises:
        UserError: for a text that is not written as HOST/HEADER=VARIABLE.
    """
    found: dict[str, dict[str, str]] = {}
    for text in auth:
        target, _, template = text.partition("=")
        host, _, name = target.strip().rpartition("/")
        if not host or "/" in host or not name or not template.strip():
            # The text is not shown: somebody may have written a secret into it.
            raise UserError("a credential is not written as HOST/HEADER=VARIABLE, as in api.example.com/X-Key=MY_KEY")
        found.setdefault(host.lower(), {})[name] = template.strip()
    return found


async def _tools(
    source: str,
    sources: Sources,
    credentials: Mapping[str, Mapping[str, str]],
    mcp_env: Sequence[str],
    stack: AsyncExitStack,
) -> list[Tool]:
    kind, _, rest = source.partition(":")
    if kind == "openapi":
        return await _openapi(rest, sources, credentials)
    if kind == "mcp":
        is_http = is_url(rest)
        headers = credentials.get(_host(rest), {}) if is_http else {}
        server = await stack.enter_async_context(open_mcp(rest, headers=headers, env=() if is_http else mcp_env))
        return server.tools
    if is_url(source):
        raise UserError(f"the source of tools {source!r} is a URL: write openapi:{source} or mcp:{source}")
    return tools_of(source)


async def _openapi(source: str, sources: Sources, credentials: Mapping[str, Mapping[str, str]]) -> list[Tool]:
    document, _, base_url = source.partition("#")
    if not document:
        raise UserError("the source of tools 'openapi:' names no document: write openapi:URL or openapi:FILE")
    hidden = [name for headers in credentials.values() for name in headers]
    api = await OpenApi.load(document, client=sources.client, base_url=base_url, hidden_headers=hidden)
    headers = credentials.get(_host(api.base_url), {})
    service = api.connect(sources.client, headers_from_env=headers)
    sources.services.append((api, service))
    return api.tools(service)


def _host(url: str) -> str:
    """Host of a URL, with its port where it has one."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _add(sources: Sources, source: str, tool: Tool) -> None:
    other = sources.origins.get(tool.name)
    if other is not None:
        raise UserError(f"two tools are named {tool.name!r}: one of {other!r} and one of {source!r}; leave one out")
    sources.tools[tool.name] = tool
    sources.origins[tool.name] = source
