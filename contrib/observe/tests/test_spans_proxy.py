"""The sender of spans takes no proxy to this machine."""

from __future__ import annotations

import asyncio

import pytest

from contrib.observe.sender import SpanSender
from contrib.observe.spans import Source
from forge_env.core.episode import Episode
from forge_env.core.types import Task
from tests.helpers.proxies import PROXY_VARIABLES, Client, goes_past_a_proxy


async def telemetry(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{url}/v1/traces")
        sender = SpanSender(
            Source(agent="a", provider="p", model="m"), messages=False, say=lambda _: None, close_seconds=15.0
        )
        sender.add(Episode(task=Task(prompt=(), id="t"), turns=(), reward=1.0, id="e"))
        await asyncio.to_thread(sender.close)


@pytest.mark.parametrize("client", [telemetry])
@pytest.mark.parametrize("name", PROXY_VARIABLES)
async def test_no_client_sends_this_machine_through_a_proxy(client: Client, name: str) -> None:
    await goes_past_a_proxy(client, name)
