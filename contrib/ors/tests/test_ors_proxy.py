"""The clients of Open Reward Standard take no proxy to this machine."""

from __future__ import annotations

import contextlib

import pytest

from contrib.ors.access import access_of
from contrib.ors.discovery import Discovery
from contrib.ors.session import Session
from tests.helpers.proxies import PROXY_VARIABLES, Client, goes_past_a_proxy


async def ors(url: str) -> None:
    session = Session(access_of(url, api_key_env="", secrets=()), "e", start_seconds=5, call_seconds=5, ping_seconds=5)
    with contextlib.suppress(Exception):
        await session._client.get("/x")
    await session.close()


async def ors_discovery(url: str) -> None:
    with Discovery(access_of(url, api_key_env="", secrets=())) as discovery:
        discovery.environment("")


@pytest.mark.parametrize("client", [ors, ors_discovery])
@pytest.mark.parametrize("name", PROXY_VARIABLES)
async def test_no_client_sends_this_machine_through_a_proxy(client: Client, name: str) -> None:
    await goes_past_a_proxy(client, name)
