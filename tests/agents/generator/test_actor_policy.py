"""ActorPolicy: an engine is told of the end of a conversation where its admission asks for it, and else not called."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("monarch")

from agents.generator.policy import ActorPolicy
from forge_env.runtime.launcher import Launcher
from tests.helpers.counting_policy import CountingPolicy


async def test_only_engines_with_admission_hear_that_a_conversation_ends(launcher: Launcher) -> None:
    service = await CountingPolicy.options().as_service(name="policy")
    client: object = service.client
    with_admission, without = (ActorPolicy(client, admission=admission) for admission in (True, False))  # type: ignore[arg-type]
    await with_admission.end_conversation("g/0")
    await asyncio.gather(*(without.end_conversation(f"g/{i}") for i in range(8)))
    await with_admission.end_conversation("g/1")
    assert await service.route(CountingPolicy.told) == ["g/0", "g/1"]
