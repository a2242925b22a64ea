"""Waiting for the answer of an actor, whatever else happens in the same moment."""

from __future__ import annotations

import asyncio

import pytest

from forge_env.core.errors import MissedDeadline, ReplicaDied, ServiceError

pytest.importorskip("monarch")

from forge_env.runtime.calls.answers import unless_gone, within

DEADLINE_S = 60.0


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_as_the_answer_comes_is_no_less_one(turns: int) -> None:
    """Whichever turn of the event loop it comes in: a run that goes on after SIGTERM goes on for ever."""
    gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    for wait in (within, lambda *given: unless_gone(within(*given), gone)):
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        went_on: list[int] = []

        async def ask(wait=wait, answer=answer, went_on=went_on) -> None:
            went_on.append(await wait(DEADLINE_S, answer, "the actor"))
            await asyncio.Event().wait()  # the next call

        asking = asyncio.create_task(ask())
        for _ in range(6):  # until it waits
            await asyncio.sleep(0)
        answer.set_result(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        done, _ = await asyncio.wait({asking}, timeout=DEADLINE_S)
        assert done and asking.cancelled(), went_on


async def test_a_deadline_is_told_and_a_time_out_of_the_call_is_another_error() -> None:
    with pytest.raises(MissedDeadline, match=r"^the actor did not answer within 0\.01 s$"):
        await within(0.01, asyncio.Event().wait(), "the actor")

    async def fail() -> None:
        raise TimeoutError("of its own")

    for seconds in (DEADLINE_S, None):
        with pytest.raises(ServiceError, match="^the actor failed: TimeoutError: of its own$") as caught:
            await within(seconds, fail(), "the actor")
        assert not isinstance(caught.value, MissedDeadline)


async def test_all_calls_that_wait_hear_that_the_actor_is_gone_and_no_others() -> None:
    gone, *answers = [asyncio.get_running_loop().create_future() for _ in range(101)]
    calls = [asyncio.create_task(unless_gone(answer, gone, ReplicaDied)) for answer in answers]
    for answer in answers[:50]:
        answer.set_result(1)
    assert await asyncio.gather(*calls[:50]) == [1] * 50
    gone.set_result("it died")
    errors = await asyncio.gather(*calls[50:], return_exceptions=True)
    assert all(isinstance(error, ReplicaDied) and str(error) == "it died" for error in errors)
    with pytest.raises(ReplicaDied, match="^it died$"):  # a call that comes later, too
        await unless_gone(asyncio.get_running_loop().create_future(), gone, ReplicaDied)
