"""Deadlines: they fire, and their clocks stand still while a caller waits in a queue of ours."""

from __future__ import annotations

import asyncio

import pytest

from forge_env.deadlines import Deadline, queued


async def test_a_deadline_fires() -> None:
    deadline = Deadline(0.01)
    with pytest.raises(TimeoutError):
        async with deadline:
            await asyncio.Event().wait()
    assert deadline.expired


async def test_waiting_in_a_queue_does_not_count() -> None:
    loop = asyncio.get_running_loop()
    place = asyncio.Event()
    loop.call_later(0.15, place.set)
    async with Deadline(0.05) as inner, Deadline(0.1) as outer, queued():
        await place.wait()
    assert not inner.expired and not outer.expired


async def test_the_clock_goes_on_after_the_queue() -> None:
    with pytest.raises(TimeoutError):
        async with Deadline(0.03):
            async with queued():
                await asyncio.sleep(0.05)
            await asyncio.Event().wait()


async def test_time_before_the_queue_counts() -> None:
    deadline = Deadline(0.2)
    async with deadline:
        before = deadline._left
        await asyncio.sleep(0.02)
        async with queued():
            assert deadline._left <= before - 0.02


async def test_two_waits_at_once_stop_the_clock_once() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def wait(event: asyncio.Event) -> None:
        async with queued():
            await event.wait()

    async with Deadline(0.05) as deadline:
        tasks = [asyncio.create_task(wait(event)) for event in (first, second)]
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.1, first.set)
        asyncio.get_running_loop().call_later(0.2, second.set)
        await asyncio.gather(*tasks)
    assert not deadline.expired


async def test_a_wait_that_outlives_its_deadline_starts_no_clock() -> None:
    place = asyncio.Event()

    async def wait() -> str:
        async with queued():
            await place.wait()
        return "through"

    async with Deadline(5.0):
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
    place.set()
    assert await task == "through"


async def test_a_deadline_inside_a_queue_runs() -> None:
    """The scoring has its own: only the clocks around the queue stand still."""
    async with Deadline(0.05) as outer:
        with pytest.raises(TimeoutError):
            async with queued(), Deadline(0.1):
                await asyncio.Event().wait()
    assert not outer.expired
