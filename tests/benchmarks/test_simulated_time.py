"""The clock that jumps: the order of things, deadlines, and that nothing waits in vain."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.simulated_time import Stuck, World, run


def test_hours_pass_in_order() -> None:
    world, seen = World(), []

    async def sleeper(name: str, hours: float, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(3600 * hours)
            seen.append((name, world.now / 3600))

    async def both() -> float:
        loop = asyncio.get_running_loop()
        await asyncio.gather(sleeper("slow", 5.0, 2), sleeper("quick", 2.0, 4))
        return loop.time()

    assert run(world, both()) == world.now == 10 * 3600
    assert seen == [("quick", 2), ("quick", 4), ("slow", 5), ("quick", 6), ("quick", 8), ("slow", 10)]


def test_events_of_a_world_wake_coroutines_at_their_time() -> None:
    world, seen = World(), []

    async def waits() -> None:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        for name in ("first", "second"):
            world.after(2.5, lambda name=name: seen.append((world.now, name)))
        world.after(2.5, lambda: world.answer(answer, "here"))
        world.after(9.0, lambda: seen.append((world.now, "too late")))
        timer = asyncio.create_task(asyncio.sleep(1.0))
        assert await answer == "here" and timer.done()
        seen.append((world.now, "answered"))

    run(world, waits())
    assert seen == [(2.5, "first"), (2.5, "second"), (2.5, "answered")]


def test_deadlines_are_simulated_too_and_a_coroutine_that_has_gone_needs_no_answer() -> None:
    world = World()

    async def waits() -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        world.after(5.0, lambda: world.answer(answer, None))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await answer
        await asyncio.sleep(10.0)

    run(world, waits())
    assert world.now == 11.0


def test_what_would_wait_for_ever_is_an_error() -> None:
    async def waits() -> None:
        await asyncio.sleep(3.0)
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="at 3 s everything waits"):
        run(World(), waits())
