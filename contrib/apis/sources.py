"""Opens sources of tools: registered names, functions in files, OpenAPI documents and MCP servers.

    add                                               a registered name
    path/to/file.py:fn    package.module:fn           a function, or a class of tools
    openapi:https://api.example.com/openapi.json      every operation of a document, from a URL or a file;
    openapi:shop.yaml#https://shop.example.com        behind #, the base URL of its service: for a document without one,
                                                      and for a file with a service that gets credentials
    mcp:python -m my_server                           the tools of an MCP server that is started
    mcp:https://example.com/mcp                       the tools of an MCP server that runs

Credentials are values of environment variables. They are written as HOST/HEADER=VARIABLE, for example
``api.example.com/Authorization=Bearer ${API_TOKEN}``. A security scheme of the document may
replace the header. HOST is the service's, with its port unless it is the usual one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from contrib.apis.http.client import ApiClient, is_url
from contrib.apis.http.pool import ApiSettings
from contrib.apis.mcp.tools import open_mcp
from contrib.apis.openapi.documents import read_document
from contrib.apis.openapi.tools import OpenApi, service_url
from contrib.apis.tool_names import ToolNames
from forge_env.core.errors import UserError
from forge_env.core.tools import Tool
from forge_env.registry.registry import tools_of

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # of a header


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The tools of all sources, valid while they are open. Any number of episodes may share them."""

    tools: dict[str, Tool]
    client: ApiClient
    """Connections, limits and cassette, for further services of the caller."""
    services: list[tuple[OpenApi, ApiClient, Mapping[str, str]]] = field(default_factory=list)
    """OpenAPI documents, with the client of the service, and name in the document -> name of the tool."""

    def episode_tools(self) -> dict[str, Tool]:
        """Return the tools for one episode. With a cassette, each episode replays the recordings from the start."""
        if self.client.settings.cassette_mode == "off":
            return self.tools
        replays: dict[str, Tool] = {}
        for api, service, names in self.services:
            replays |= {names[tool.name]: _rename(tool, names) for tool in api.tools(service.with_headers({}))}
        return {**self.tools, **replays}


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
    base_url: str = "",
    other_names: Iterable[str] = (),
) -> AsyncIterator[Sources]:
    """Open the sources of tools, and close them when left; see `contrib.apis.services.open_services`.

    Args:
        other_names: names of further tools. If one of these, or of an earlier source, has a tool's name, the tool is
            renamed, see `contrib.apis.tool_names`.
    """
    rules = _Rules(parse_auth(auth))
    sources_in_order = _with_base_url([source.strip() for source in tools], base_url)
    for source in sources_in_order:
        if sources_in_order.count(source) > 1:
            raise UserError(f"the source of tools {source!r} is named twice: leave one out")
    settings = ApiSettings(
        requests_per_second=requests_per_second,
        concurrency=host_concurrency,
        cassette=cassette,
        cassette_mode=cassette_mode if cassette else "off",
    )
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(settings))
        sources = Sources(tools={}, client=client)
        names = ToolNames(other_names)
        for source in sources_in_order:
            source_tools = await _tools(source, sources, rules, mcp_env, stack)
            new_names = names.of(source, [tool.name for tool in source_tools])
            if sources.services and source.startswith("openapi:"):
                sources.services[-1] = (*sources.services[-1][:2], new_names)
            sources.tools.update({new_names[tool.name]: _rename(tool, new_names) for tool in source_tools})
        rules.check()
        yield sources


async def list_tools(source: str) -> list[Tool]:
    """Return the tools of a source, to be shown. No credentials are sent."""
    async with open_sources([source]) as sources:
        return list(sources.tools.values())


def parse_auth(auth: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return header -> template, by host."""
    templates: dict[str, dict[str, str]] = {}
    for text in auth:
        target, _, template = text.partition("=")
        host, _, name = target.strip().rpartition("/")
        if not host or "/" in host or not _NAME.fullmatch(name) or not template.strip():
            # The text is not shown: somebody may have written a secret into it.
            raise UserError("a credential is not written as HOST/HEADER=VARIABLE, as in api.example.com/X-Key=MY_KEY")
        templates.setdefault(host.lower(), {})[name] = template.strip()
    return templates


async def _tools(
    source: str, sources: Sources, rules: _Rules, mcp_env: Sequence[str], stack: AsyncExitStack
) -> list[Tool]:
    kind, _, rest = source.partition(":")
    if kind == "openapi":
        return await _openapi(rest, sources, rules)
    if kind == "mcp":
        is_http = is_url(rest)
        headers = rules.of(rest) if is_http else {}
        server = await stack.enter_async_context(open_mcp(rest, headers=headers, env=() if is_http else mcp_env))
        return server.tools
    if is_url(source):
        raise UserError(f"the source of tools {source!r} is a URL: write openapi:{source} or mcp:{source}")
    return tools_of(source)


async def _openapi(source: str, sources: Sources, rules: _Rules) -> list[Tool]:
    document, _, base_url = source.partition("#")
    if not document:
        raise UserError("the source of tools 'openapi:' names no document: write openapi:URL or openapi:FILE")
    data = await read_document(document, sources.client)
    headers = rules.of(base_url or service_url(data, document))
    api = OpenApi(data, source=document, base_url=base_url, hidden_headers=list(headers))
    service = api.connect(sources.client, headers_from_env=headers)
    sources.services.append((api, service, {}))
    return api.tools(service)


class _Rules:
    """The credentials that the user has named, header -> template by host, and which of them are for a source."""

    def __init__(self, rules: Mapping[str, Mapping[str, str]]) -> None:
        self._rules = rules
        self._source_hosts: set[str] = set()
        self._hosts: list[str] = []

    def of(self, url: str) -> dict[str, str]:
        hosts = _hosts(url)
        self._hosts += hosts[:1]
        self._source_hosts.update(hosts)
        return {name: template for host in hosts for name, template in self._rules.get(host, {}).items()}

    def check(self) -> None:
        for host in self._rules.keys() - self._source_hosts:
            names = ", ".join(f"{host}/{name}" for name in self._rules[host])
            hosts = ", ".join(sorted(set(self._hosts))) or "none, and an MCP server that is a command has mcp_env"
            raise UserError(
                f"the credential {names} is for no source of tools, so nothing would be sent; hosts of the sources, "
                f"with the port where it is not the usual one: {hosts}"
            )


def _with_base_url(sources: Sequence[str], base_url: str) -> list[str]:
    """Write the base URL behind the one openapi: source that has none."""
    if not base_url:
        return list(sources)
    bare = [source for source in sources if source.startswith("openapi:") and "#" not in source]
    if len(bare) != 1:
        raise UserError(
            f"base_url={base_url} is for one openapi: source without a # in it, and tools has {len(bare)} of them: "
            "write openapi:DOCUMENT#URL for each"
        )
    return [f"{source}#{base_url}" if source == bare[0] else source for source in sources]


def _hosts(url: str) -> list[str]:
    """The ways to write the host of a URL: with its port, and also without it if the port is the usual one."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return []
    if not host:
        return []
    host = f"[{host}]" if ":" in host else host
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    if port is not None and port != usual:
        return [f"{host}:{port}"]
    return [host, f"{host}:{usual}"]


def _rename(tool: Tool, names: Mapping[str, str]) -> Tool:
    return tool if names[tool.name] == tool.name else replace(tool, name=names[tool.name])
