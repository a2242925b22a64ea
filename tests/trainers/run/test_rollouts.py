"""A group that is played again on request: its prompt is neither lost nor answered twice."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.rollout.rollout import GroupSpec
from trainers.metrics.observer import Spans
from trainers.run.rollouts import Rollouts

SPEC = GroupSpec(task=Task(prompt=()), count=1, seed=0, group_id="train/7")


class Played:
    """A service of environments whose groups come back when the test says so."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[Any]] = []
        self.cancelled = 0

    async def route(self, endpoint: Any, spec: GroupSpec) -> Any:
        self.calls.append(asyncio.get_running_loop().create_future())
        try:
            return await self.calls[-1]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def rollouts(played: Played) -> Any:
    given: dict[str, Any] = {
        "plan": None,
        "envs": {"": played},
        "engines": None,
        "weights": SimpleNamespace(in_engines=3),
        "record": Spans(),
    }
    return Rollouts(**given)


async def until_called(played: Played, times: int) -> None:
    while len(played.calls) < times:
        await asyncio.sleep(0)


async def test_a_requeued_group_is_played_again_and_comes_back_once() -> None:
    played = Played()
    made = rollouts(played)
    running = asyncio.create_task(made.run_group(SPEC))
    await until_called(played, 1)
    assert made.in_flight["train/7"].version == 3
    made.requeue("train/7")
    await until_called(played, 2)
    assert played.cancelled == 1 and not running.done()
    played.calls[1].set_result(SimpleNamespace(episodes=(), id="train/7"))
    assert (await running).id == "train/7" and made.in_flight == {}
    with pytest.raises(UserError, match="no group 'train/7' is played now"):
        made.requeue("train/7")


@pytest.mark.parametrize("is_requeued", [False, True])
async def test_a_group_whose_caller_ends_is_not_played_again(is_requeued: bool) -> None:
    played = Played()
    made = rollouts(played)
    running = asyncio.create_task(made.run_group(SPEC))
    await until_called(played, 1)
    if is_requeued:
        made.requeue("train/7")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(played.calls) == played.cancelled == 1 and made.in_flight == {}


async def test_a_group_that_comes_back_in_the_moment_of_the_request_stays() -> None:
    played = Played()
    made = rollouts(played)
    running = asyncio.create_task(made.run_group(SPEC))
    await until_called(played, 1)
    call, refusals = made.in_flight["train/7"].call, list[str]()

    def ask(_: object) -> None:
        try:
            made.requeue("train/7")
        except UserError as error:
            refusals.append(str(error))

    call.add_done_callback(ask)
    played.calls[0].set_result(SimpleNamespace(episodes=(), id="train/7"))
    assert (await running).id == "train/7" and len(played.calls) == len(refusals) == 1
