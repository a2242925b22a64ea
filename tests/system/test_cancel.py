"""A call that is cancelled reaches the engine of another process, and frees its place there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agents.generator.policy import ActorPolicy, PolicyActor
from agents.generator.settings import EngineSettings
from forge_env.core.types import Sampling
from forge_env.rollout.lockstep import Request
from forge_env.runtime.calls.handle import View
from forge_env.runtime.launcher import Launcher
from forge_env.runtime.service import Service

SECONDS = 120.0
LONG = Sampling(max_tokens=900, seed=1)


async def until_it_has(service: Service[PolicyActor] | View[PolicyActor], running: int) -> None:
    async with asyncio.timeout(SECONDS):
        while (await service.route(PolicyActor.use)).running != running:
            await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(600)  # one start of the engine
async def test_a_cancelled_completion_frees_its_place(tiny_model: Path, tmp_path: Path) -> None:
    settings = EngineSettings(max_model_len=1024, max_requests=1)  # what is not ended keeps all others waiting
    async with Launcher(tmp_path / "logs"):
        options = PolicyActor.options(seconds=0.001, start_seconds=400.0)  # no deadline of a completion
        service = await options.as_service(model=str(tiny_model), settings=settings)
        policy = ActorPolicy(service.client)

        async def cancelled(call: asyncio.Future[object], running: int) -> None:
            await until_it_has(service, running)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await until_it_has(service, 0)

        service = service.deadline(SECONDS)  # type: ignore[assignment]
        await cancelled(asyncio.ensure_future(policy.generate([1, 2], LONG, request_id="a", session="a")), 1)
        batch = [Request((1, i), LONG, f"batch/{i}") for i in range(3)]
        await cancelled(asyncio.ensure_future(policy.generate_batch(batch)), 3)
        after = await policy.generate([1, 2], Sampling(max_tokens=4), request_id="b", session="b")
        assert len(after.token_ids) == 4
