"""The clients of OpenEnv servers take no proxy to this machine."""

from __future__ import annotations

import pytest

from contrib.openenv.description import HttpApi
from contrib.openenv.session import Session
from tests.helpers.proxies import PROXY_VARIABLES, Client, goes_past_a_proxy


async def openenv(url: str) -> None:
    with HttpApi(url, {}) as api:
        api.describe()


async def openenv_session(url: str) -> None:
    await Session.connect(url, {})


@pytest.mark.parametrize("client", [openenv, openenv_session])
@pytest.mark.parametrize("name", PROXY_VARIABLES)
async def test_no_client_sends_this_machine_through_a_proxy(client: Client, name: str) -> None:
    await goes_past_a_proxy(client, name)
