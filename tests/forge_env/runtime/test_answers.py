"""Waiting for an actor's answer: a deadline, and a cancellation that is never lost."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("monarch")

from forge_env.core.errors import MissedDeadline, ServiceError
from forge_env.runtime.calls.answers import within


async def _sum_of_many(answers: list[asyncio.Future[int]]) -> int:
    return sum([await within(60.0, answer, "the actor") for answer in answers])


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancellation_that_comes_with_an_answer_is_not_lost(turns: int) -> None:
    """Whichever turn of the event loop it comes in, the caller does not go on to its next call."""
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    caller = asyncio.create_task(_sum_of_many([first, second]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.set_result(1)
    for _ in range(turns):
        await asyncio.sleep(0)
    caller.cancel()
    done, _ = await asyncio.wait({caller}, timeout=10.0)
    second.cancel()
    assert done and caller.cancelled()


async def test_an_answer_that_is_late_is_a_missed_deadline_and_the_actors_own_time_out_is_not() -> None:
    async def times_out() -> None:
        raise TimeoutError("the disk")

    with pytest.raises(MissedDeadline, match=r"^the actor did not answer within 0\.01 s$"):
        await within(0.01, asyncio.get_running_loop().create_future(), "the actor")
    with pytest.raises(ServiceError, match="^the actor failed: TimeoutError: the disk$") as raised:
        await within(60.0, times_out(), "the actor")
    assert not isinstance(raised.value, MissedDeadline)
