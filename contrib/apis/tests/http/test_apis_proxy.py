"""The clients of HTTP services and MCP servers take no proxy to this machine."""

from __future__ import annotations

import pytest

from contrib.apis.http.client import ApiClient
from contrib.apis.http.credentials import Credentials
from contrib.apis.http.pool import ApiSettings
from contrib.apis.mcp.transport import _http_client
from tests.helpers.proxies import PROXY_VARIABLES, Client, goes_past_a_proxy


async def tools(url: str) -> None:
    async with ApiClient(ApiSettings(retries=0)) as client:
        await client.at(url).request("GET", "/x")


async def mcp(url: str) -> None:
    async with _http_client(url, Credentials(), 5.0, "") as client:
        await client.get(url)


@pytest.mark.parametrize("client", [tools, mcp])
@pytest.mark.parametrize("name", PROXY_VARIABLES)
async def test_no_client_sends_this_machine_through_a_proxy(client: Client, name: str) -> None:
    await goes_past_a_proxy(client, name)
