"""Tools from OpenAPI 3.0 and 3.1 documents: every operation becomes one.

A document that thousands of episodes use is read once, and its tools are made for each caller::

    api = await OpenApi.load(f"{server.base_url}/openapi.json", client=client)
    shop = api.connect(client)
    env.set_tools({tool.name: tool for tool in api.tools(shop.with_headers({"Authorization": f"Bearer {token}"}))})
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import repeat
from typing import Any

import httpx

from contrib.apis.http.client import ApiClient, is_url
from contrib.apis.http.credentials import Credentials, value_from_env
from contrib.apis.http.credentials import headers_from_env as env_headers
from contrib.apis.http.results import answer_text
from contrib.apis.json_schema.from_openapi import References
from contrib.apis.json_schema.validation import SchemaArguments
from contrib.apis.openapi.documents import plain, read_document
from contrib.apis.openapi.encoding import encode
from contrib.apis.openapi.operations import Entry, Operation, entries, read_operation
from forge_env.core.errors import UserError, nearest
from forge_env.core.tools import Tool, ToolOptions
from forge_env.core.types import ToolFailure

_GIVE = "give base_url=https://..."


class OpenApi:
    """The operations of a document.

    Args:
        document: as data.
        source: the URL or the file of the document, if any.
        base_url: of the service; by default the first server of the document, which must be on the document's host. A
            document does not decide where credentials are sent: the service of a document from a file, or of data, is
            sent credentials only where the caller gives this.
        include: names of tools, with * for any text; by default all.
        exclude: names of tools to leave out.
        hidden_headers: headers that the client adds, such as credentials; they are not arguments of the tools.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        *,
        source: str = "",
        base_url: str = "",
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        hidden_headers: Sequence[str] = (),
    ) -> None:
        self._document = plain(document, f"the OpenAPI document {source}".strip())
        self._source = source
        self._references = References(self._document)
        _check_version(self._document, source)
        self._schemes = self._security_schemes()
        self._base_url = base_url
        hidden = {("header", name.lower()) for name in hidden_headers}
        hidden |= {(str(scheme.get("in")), str(scheme.get("name")).lower()) for scheme in self._schemes.values()}
        all_entries = list(entries(self._document, self._references))
        selection = _select(all_entries, include, exclude)
        for entry in selection:
            self._check_servers(entry)
        self.operations = [read_operation(entry, self._references, hidden) for entry in selection]
        self._arguments = [_arguments(operation) for operation in self.operations]

    @classmethod
    async def load(cls, source: str | Mapping[str, Any], *, client: ApiClient, **options: Any) -> OpenApi:
        """Read a document from a URL, a JSON or YAML file, or data; the options are the class's."""
        document = await read_document(source, client)
        return cls(document, source=source if isinstance(source, str) else "", **options)

    @property
    def base_url(self) -> str:
        return self._base_url or service_url(self._document, self._source)

    def connect(self, client: ApiClient, *, headers_from_env: Mapping[str, str] = {}) -> ApiClient:
        """Return a client of the service; `headers_from_env` may name security schemes of the document as well."""
        schemes = {name: value for name, value in headers_from_env.items() if name in self._schemes}
        headers = {name: value for name, value in headers_from_env.items() if name not in self._schemes}
        is_named = bool(self._base_url) or is_url(self._source)  # by the user
        service = client.at(self.base_url, named_by="" if is_named else f"the OpenAPI document {self._source}".strip())
        if headers:
            service = service.with_credentials(env_headers(headers))
        for name, template in schemes.items():
            service = service.with_credentials(_scheme_credentials(name, self._schemes[name], template))
        return service

    def tools(self, service: ApiClient) -> list[Tool]:
        """Return the tools, which call the service through a client of `connect`; cheap enough for each episode."""
        return list(map(_tool, self.operations, self._arguments, repeat(service)))

    def _check_servers(self, entry: Entry) -> None:
        """Refuse an operation that is at another place than the document's service."""
        if not isinstance(entry.servers, list):
            return
        urls = [_server_url(server) for server in entry.servers]
        places = {url.rstrip("/") for url in (self._base_url, _server_url(_first_server(self._document)))}
        if urls and places.isdisjoint(url.rstrip("/") for url in urls):
            raise UserError(
                f"the operation {entry.method} {entry.path} has a server of its own, {urls[0][:200]!r}, and all tools "
                "of a document call one: exclude the operation, or name that server with base_url="
            )

    def _security_schemes(self) -> dict[str, dict[str, Any]]:
        components = self._document.get("components")
        schemes = components.get("securitySchemes") if isinstance(components, dict) else None
        nodes = schemes.items() if isinstance(schemes, dict) else ()
        targets = {name: self._references.follow(node, f"the security scheme {name}") for name, node in nodes}
        return {name: node for name, node in targets.items() if isinstance(node, dict)}


def _arguments(operation: Operation) -> SchemaArguments:
    where = f"the operation {operation.method} {operation.path}"
    return SchemaArguments({**operation.schema, "additionalProperties": False}, where=where)


def _tool(operation: Operation, check: SchemaArguments, service: ApiClient) -> Tool:
    async def call(**arguments: Any) -> str:
        try:
            request = encode(operation, arguments)
        except ValueError as error:
            return ToolFailure(f"Error: {error}", kind="bad_arguments")
        return answer_text(
            await service.request(operation.method, request.target, headers=request.headers, content=request.content)
        )

    is_read = operation.method in ("GET", "HEAD", "OPTIONS")
    return Tool(
        name=operation.name,
        description=operation.description,
        parameters=operation.schema,
        arguments=check,
        function=call,
        # Longer than all attempts, so that a slow service is a fault of the episode and not a result.
        options=ToolOptions(timeout=service.settings.longest_seconds + 5, idempotent=is_read, parallel=is_read),
    )


def service_url(document: Mapping[str, Any], source: str) -> str:
    """Return the base URL that a document, as plain data, names; the source is its URL or file, if any."""
    _check_version(document, source)
    url = _server_url(_first_server(document))
    origin = httpx.URL(source) if is_url(source) else None
    try:
        service = origin.join(url) if origin else httpx.URL(url)
        is_foreign = origin is not None and (service.scheme, service.netloc) != (origin.scheme, origin.netloc)
    except (httpx.InvalidURL, ValueError):
        raise UserError(f"the OpenAPI document names the server {url[:200]!r}, which is no URL: {_GIVE}") from None
    if not service.host or not service.scheme or "{" in url:
        raise UserError(f"the OpenAPI document does not say where its service is: {_GIVE}")
    if is_foreign:
        raise UserError(f"the OpenAPI document {source} is of another host than its server {service}: {_GIVE}")
    return str(service)


def _check_version(document: Mapping[str, Any], source: str) -> None:
    version = document.get("openapi")
    if isinstance(version, str) and version.startswith("3."):
        return
    actual = "Swagger 2.0: convert it first" if "swagger" in document else f"openapi: {version!r:.50}"
    raise UserError(f"the document {source} is no OpenAPI 3.0 or 3.1 document but {actual}".replace("  ", " "))


def _select(all_entries: Sequence[Entry], include: Sequence[str] | None, exclude: Sequence[str] | None) -> list[Entry]:
    names = [entry.name for entry in all_entries]
    for pattern in (*(include or ()), *(exclude or ())):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(f"the OpenAPI document has no operation {pattern!r}. {nearest(pattern, names)}")
    return [
        entry
        for entry in all_entries
        if (include is None or any(fnmatchcase(entry.name, pattern) for pattern in include))
        and not any(fnmatchcase(entry.name, pattern) for pattern in exclude or ())
    ]


def _first_server(document: Mapping[str, Any]) -> Any:
    servers = document.get("servers")
    return servers[0] if isinstance(servers, list) and servers else {}


def _server_url(server: Any) -> str:
    url = server.get("url", "/") if isinstance(server, dict) else None
    if not isinstance(url, str):
        raise UserError(f"the OpenAPI document has a server without a URL: {_GIVE}")
    variables = server.get("variables")
    for name, variable in variables.items() if isinstance(variables, dict) else ():
        if isinstance(variable, dict):
            url = url.replace("{" + name + "}", str(variable.get("default", "")))
    return url


def _scheme_credentials(name: str, scheme: Mapping[str, Any], template: str) -> Credentials:
    value, secrets = value_from_env(template)
    kind, place, key = scheme.get("type"), scheme.get("in"), str(scheme.get("name"))
    if kind == "apiKey" and place in ("header", "query", "cookie"):
        field = {"header": "headers", "query": "query", "cookie": "cookies"}[place]
        return Credentials(secrets=frozenset(secrets), **{field: {key: value}})
    if kind == "http" and str(scheme.get("scheme")).lower() == "basic":
        value = base64.b64encode(value.encode()).decode()
        return Credentials(headers={"Authorization": f"Basic {value}"}, secrets=frozenset({*secrets, value}))
    if kind in ("http", "oauth2", "openIdConnect"):
        return Credentials(headers={"Authorization": f"Bearer {value}"}, secrets=frozenset(secrets))
    raise UserError(
        f"the security scheme {name} is of the type {kind!r:.50}; apiKey, http, oauth2 and openIdConnect are known"
    )
