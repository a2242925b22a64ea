"""The clients of environments elsewhere take no proxy to this machine."""

from __future__ import annotations

import pytest

from contrib.serve.remote.connection import open_connections
from contrib.serve.remote.server_address import ServerAddress
from tests.helpers.proxies import PROXY_VARIABLES, Client, goes_past_a_proxy


async def remote(url: str) -> None:
    ServerAddress.parse(url).about()


async def remote_calls(url: str) -> None:
    async with open_connections(retry_seconds=0) as connections:
        await connections.take(ServerAddress.parse(url)).call("s", {"call": "reset"})


@pytest.mark.parametrize("client", [remote, remote_calls])
@pytest.mark.parametrize("name", PROXY_VARIABLES)
async def test_no_client_sends_this_machine_through_a_proxy(client: Client, name: str) -> None:
    await goes_past_a_proxy(client, name)
