"""No client of an endpoint sends what is for this machine through a proxy."""

from __future__ import annotations

import pytest

from contrib.chat.agent import ChatAgent
from forge_env.core.protocols import Conversation
from tests.helpers.proxies import PROXY_VARIABLES, VARIABLES, Client, goes_past_a_proxy


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def chat(url: str) -> None:
    async with ChatAgent("m", url, api_key_env="", retries=0) as agent:
        await agent.act(Conversation(request_id="c", observation=({"role": "user", "content": "?"},)), [])


async def rendering(url: str) -> None:
    async with ChatAgent("m", url, api_key_env="") as agent:
        await agent.compare_rendering([], [])


@pytest.mark.parametrize("client", [chat, rendering])
@pytest.mark.parametrize("name", PROXY_VARIABLES)
async def test_no_client_sends_this_machine_through_a_proxy(client: Client, name: str) -> None:
    await goes_past_a_proxy(client, name)
