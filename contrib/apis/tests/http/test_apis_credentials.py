"""Who gets a credential: only a service that the user has named. Each attack works where nothing stops it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from contrib.apis.env import ToolApi
from contrib.apis.http.client import ApiClient, ApiSettings
from contrib.apis.http.credentials import headers_from_env
from contrib.apis.mcp.tools import open_mcp
from contrib.apis.openapi.tools import OpenApi
from contrib.apis.sources import open_sources
from contrib.apis.tests.openapi_tools import openapi_tools
from contrib.apis.tool_names import ToolNames, label_of
from forge_env.cli.main import main
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.tools import Tool
from forge_env.core.types import ToolCall
from forge_env.registry.registry import tools_of
from forge_env.rollout.factory import make
from forge_env.tool_env.tool_env import Toolbox
from tests.envs.serving import serve

SECRET = "the-secret-of-the-user"


class Service:
    """Notes the keys that it is sent."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: list[str | None] = []
        self.redirects_to = ""
        self.app = FastAPI()

        @self.app.api_route("/{rest:path}", methods=["GET", "POST"], include_in_schema=False)
        async def any_path(rest: str, request: Request) -> Response:
            self.keys.append(request.headers.get("x-key"))
            if self.redirects_to:
                return RedirectResponse(self.redirects_to, 307)
            return JSONResponse({"ok": True}, 404 if rest == "missing" else 200)

    def document(self, *names: str, named: bool = True, path: str = "/thing") -> dict[str, Any]:
        operations = {f"{path}{i or ''}": {"get": {"operationId": name}} for i, name in enumerate(names or ("thing",))}
        servers = {"servers": [{"url": self.url}]} if named else {}
        return {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": operations, **servers}


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[Service, Service]]:
    made = Service(), Service()
    with serve(made[0].app) as made[0].url, serve(made[1].app) as made[1].url:
        yield made


def fresh(service: Service) -> Service:
    service.keys.clear()
    service.redirects_to = ""
    return service


@pytest.fixture
def theirs(services: tuple[Service, Service]) -> Service:
    return fresh(services[0])


@pytest.fixture
def other(services: tuple[Service, Service]) -> Service:
    return fresh(services[1])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", SECRET)


@pytest.fixture
async def client() -> AsyncIterator[ApiClient]:
    async with ApiClient(ApiSettings(backoff_seconds=0.001, retries=0)) as client:
        yield client


def written(folder: Path, document: dict[str, Any], name: str = "api.json") -> str:
    (folder / name).write_text(json.dumps(document))
    return str(folder / name)


async def call(tools: dict[str, Tool], name: str, **arguments: Any) -> tuple[str, str]:
    [message], [use] = await Toolbox(tools).answer([ToolCall(id="1", name=name, arguments=arguments)])
    return message["content"], use.error


def by_name(tools: list[Tool]) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}


async def test_a_document_in_a_file_does_not_choose_who_gets_the_credentials(
    theirs: Service, client: ApiClient, tmp_path: Path
) -> None:
    file, host = written(tmp_path, theirs.document()), theirs.url.removeprefix("http://")
    refused = pytest.raises(UserError, match=f"credentials go only where you say: give base_url={theirs.url} if")
    for source in (file, theirs.document()):
        with refused:
            await openapi_tools(source, client=client, headers_from_env={"X-Key": "THE_KEY"})
        api = await OpenApi.load(source, client=client)
        with refused:
            api.connect(client).with_headers({"X-Key": SECRET})
        assert (await call(by_name(api.tools(api.connect(client).with_headers({}))), "thing"))[1] == ""
    with refused:
        async with open_sources([f"openapi:{file}"], auth=[f"{host}/X-Key=THE_KEY"]):
            pass
    assert set(theirs.keys) == {None}
    # The control: a client that asks nobody who has named the service.
    unguarded = client.at(api.base_url).with_credentials(headers_from_env({"X-Key": "THE_KEY"}))
    await call(by_name(api.tools(unguarded)), "thing")
    assert theirs.keys.pop() == SECRET
    # And the way that is meant.
    for sources, options in (([f"openapi:{file}#{theirs.url}"], {}), ([f"openapi:{file}"], {"base_url": theirs.url})):
        async with open_sources(sources, auth=[f"{host}/X-Key=THE_KEY"], **options) as opened:
            await call(opened.tools, "thing")
        assert theirs.keys.pop() == SECRET


async def test_a_security_scheme_of_a_file_does_not_get_the_credentials(theirs: Service, client: ApiClient) -> None:
    schemes = {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}}
    api = OpenApi({**theirs.document(), "components": schemes})
    with pytest.raises(UserError, match="credentials go only where you say"):
        api.connect(client, headers_from_env={"key": "THE_KEY"})
    assert theirs.keys == []


async def test_a_redirect_to_another_port_carries_no_header_along(
    theirs: Service, other: Service, client: ApiClient
) -> None:
    theirs.redirects_to = f"{other.url}/thing"
    key = {"X-Key": "THE_KEY"}
    tools = await openapi_tools(theirs.document(), client=client, base_url=theirs.url, headers_from_env=key)
    assert (await call(by_name(tools), "thing"))[1] == "http_307"
    assert theirs.keys == [SECRET] and other.keys == []
    # The control: httpx takes only Authorization away where a redirect leaves the host.
    async with httpx.AsyncClient(headers={"X-Key": SECRET}, follow_redirects=True) as plain:
        await plain.get(f"{theirs.url}/thing")
    assert other.keys == [SECRET]


async def test_an_mcp_server_that_redirects_carries_no_header_along(theirs: Service, other: Service) -> None:
    pytest.importorskip("mcp")
    import httpx2

    theirs.redirects_to = f"{other.url}/mcp"
    with pytest.raises(ServiceError):
        async with open_mcp(f"{theirs.url}/mcp", headers={"X-Key": "THE_KEY"}, start_seconds=5):
            pass
    assert SECRET in theirs.keys and other.keys == []
    async with httpx2.AsyncClient(headers={"X-Key": SECRET}, follow_redirects=True) as plain:
        await plain.post(f"{theirs.url}/mcp")
    assert other.keys == [SECRET]


async def test_a_credential_that_is_for_no_source_is_an_error(theirs: Service, tmp_path: Path) -> None:
    file, host = written(tmp_path, theirs.document()), theirs.url.removeprefix("http://")
    source = f"openapi:{file}#{theirs.url}"
    for rule in ("127.0.0.1/X-Key=THE_KEY", "localhost/X-Key=THE_KEY", f"{host}0/X-Key=THE_KEY"):
        with pytest.raises(UserError, match=f"{rule.partition('=')[0]} is for no source of tools.*: {host}$"):
            async with open_sources([source], auth=[rule]):
                pass
    with pytest.raises(UserError, match="none, and an MCP server that is a command has mcp_env"):
        async with open_sources([], auth=[f"{host}/X-Key=THE_KEY"]):
            pass
    assert theirs.keys == []


async def test_the_usual_port_may_be_written_or_left_out(tmp_path: Path, client: ApiClient, theirs: Service) -> None:
    file = written(tmp_path, theirs.document(named=False))
    hosts = {"https://api.example.com": "api.example.com:443", "http://Api.example.com:80": "API.example.com"}
    for base, host in hosts.items():
        async with open_sources([f"openapi:{file}#{base}"], auth=[f"{host}/X-Key=THE_KEY"]) as opened:
            assert list(opened.tools) == ["thing"]


async def test_the_header_of_one_service_stays_an_argument_of_another(theirs: Service, tmp_path: Path) -> None:
    document = theirs.document()
    parameter = {"name": "X-Key", "in": "header", "schema": {"type": "string"}}
    document["paths"]["/thing"]["get"]["parameters"] = [parameter]
    files = [written(tmp_path, document, name) for name in ("left.json", "right.json")]
    sources = [f"openapi:{files[0]}#{theirs.url}", f"openapi:{files[1]}#http://localhost:1"]
    host = theirs.url.removeprefix("http://")
    async with open_sources(sources, auth=[f"{host}/X-Key=THE_KEY"]) as opened:
        shown = {name: list(tool.parameters["properties"]) for name, tool in opened.tools.items()}
        assert shown == {"thing": [], "right_thing": ["X-Key"]}


async def test_a_document_without_servers_is_given_its_base_url(theirs: Service, tmp_path: Path) -> None:
    file = written(tmp_path, theirs.document(named=False))
    Path(file).write_bytes(b"\xef\xbb\xbf" + Path(file).read_bytes())  # a byte order mark does no harm
    with pytest.raises(UserError, match="does not say where its service is: give base_url="):
        async with open_sources([f"openapi:{file}"]):
            pass
    async with open_sources([f"openapi:{file}"], base_url=theirs.url) as opened:
        assert await call(opened.tools, "thing") == ('{"ok":true}', "")
    for sources in (["openapi:a.json", "openapi:b.json"], [f"openapi:{file}#{theirs.url}"], []):
        with pytest.raises(UserError, match="is for one openapi: source without a #"):
            async with open_sources(sources, base_url=theirs.url):
                pass


async def test_tools_of_one_name_are_called_at_their_own_services(
    theirs: Service, other: Service, tmp_path: Path
) -> None:
    documents = {"left": theirs.document("thing", "only_0"), "right": other.document("thing", "only_1")}
    files = [written(tmp_path, document, f"{name}.json") for name, document in documents.items()]
    cassette = str(tmp_path / "cassette.jsonl")
    for options in ({}, {"cassette": cassette}):
        async with open_sources([f"openapi:{file}" for file in files], **options) as opened:
            assert list(opened.tools) == ["thing", "only_0", "right_thing", "only_1"]
            tools = opened.episode_tools()
            assert list(tools) == list(opened.tools) and tools["right_thing"].name == "right_thing"
            seen = len(theirs.keys), len(other.keys)
            await call(tools, "right_thing")
            assert (len(theirs.keys), len(other.keys)) == (seen[0], seen[1] + 1)


@pytest.mark.parametrize(
    ("source", "label"),
    [
        ("openapi:pets/shop.v2.yaml#https://example.com", "shop_v2"),
        ("openapi:https://api.example.com:8443/openapi.json", "api_example_com"),
        ("mcp:python -m my.wiki --key hush", "wiki"),
        ("mcp:npx -y @scope/server-files /home/me", "server_files"),
        ("mcp:https://wiki.example.com/mcp", "wiki_example_com"),
        ("mcp:'", "other"),
        ("tools/add.py:plus", "add"),
        ("package.module:plus", "module"),
        ("calculator", "calculator"),
        ("openapi:é.json", "other"),
    ],
)
def test_labels(source: str, label: str) -> None:
    assert label_of(source) == label


def test_a_source_at_the_end_renames_nothing_and_no_two_names_are_the_same() -> None:
    listed = [("a.py:x", ["x", "b_x"]), ("b.py:x", ["x", "y" * 64]), ("c/b.py:x", ["x", "y" * 64])]
    names = ToolNames(["taken"])
    given = [names.of(source, own) for source, own in listed]
    assert given[:2] == [{"x": "x", "b_x": "b_x"}, {"x": "b_x_2", "y" * 64: "y" * 64}]
    again = ToolNames(["taken"])
    assert [again.of(source, own) for source, own in listed[:2]] == given[:2]
    flat = [name for own in given for name in own.values()]
    assert len(set(flat)) == len(flat) == 6 and all(len(name) <= 64 for name in flat)
    assert names.of("d.py:taken", ["taken"]) == {"taken": "d_taken"}


async def test_a_document_is_registered_with_its_base_url(
    theirs: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORGE_ENV_REGISTRY", raising=False)
    written(tmp_path, theirs.document(named=False))
    register = ["register", "openapi:api.json", "--name", "pets"]
    assert await asyncio.to_thread(main, register) == 2
    assert "does not say where its service is: give base_url=" in capsys.readouterr().err
    assert await asyncio.to_thread(main, [*register, "--base-url", theirs.url, "--timeout", "3"]) == 2
    assert await asyncio.to_thread(main, [*register[:1], "mcp:x", "--base-url", theirs.url]) == 2
    assert await asyncio.to_thread(main, [*register, "--base-url", theirs.url, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (shown["name"], [tool["name"] for tool in shown["tools"]]) == ("pets", ["thing"])
    assert await asyncio.to_thread(main, ["info", "pets"]) == 0
    with pytest.raises(UserError, match="is a source of tools, which is opened and not imported"):
        tools_of("pets")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "?", "answer": "5"}\n')
    host = theirs.url.removeprefix("http://")
    options = {"tools": "pets", "data": "rows.jsonl", "auth": f"{host}/X-Key=THE_KEY"}
    assert ToolApi.effects(tools=["pets"]) == f"calls openapi:{tmp_path / 'api.json'}#{theirs.url}"
    async with make("tool_api", **options) as factory:
        assert await call(factory.make().services.tools(), "thing") == ('{"ok":true}', "")
    assert theirs.keys == [SECRET]
