"""Deadlines: they fire, and their clocks stand still while a caller waits in a queue of ours."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated_time import World
from benchmarks.simulated_time import run as simulated
from forge_env.utils.deadlines import Deadline, queued


async def in_queue(event: asyncio.Event) -> str:
    async with queued():
        await event.wait()
    return "through"


async def for_ever() -> None:
    await asyncio.Event().wait()


def after(seconds: float) -> asyncio.Event:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, event.set)
    return event


async def test_a_deadline_fires_and_cancels_the_work() -> None:
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await for_ever()
        except asyncio.CancelledError:
            cancelled = True
            raise

    deadline = Deadline(0.01)
    with pytest.raises(TimeoutError):
        await deadline.run(work())
    assert deadline.has_expired and cancelled


async def test_results_and_exceptions_come_through() -> None:
    async def work(waits: bool, fails: bool) -> list[int]:
        if waits:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await for_ever()
        if fails:
            raise TimeoutError("of its own")
        return list(await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0.001, 2)))

    for waits in (False, True):
        assert await Deadline(5.0).run(work(waits, False)) == [1, 2]
        deadline = Deadline(5.0)
        with pytest.raises(TimeoutError, match="of its own"):
            await deadline.run(work(waits, True))
        assert not deadline.has_expired


async def test_a_caller_that_is_cancelled_cancels_the_work() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await for_ever()
        finally:
            ended.set()

    task = asyncio.create_task(Deadline(5.0).run(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


# In simulated time: on a busy machine, a real clock goes on where the work does not.


async def test_a_wait_that_outlives_its_deadline_starts_no_clock() -> None:
    place = asyncio.Event()

    async def work() -> asyncio.Task[str]:
        task = asyncio.create_task(in_queue(place))
        await asyncio.sleep(0)
        return task

    task = await Deadline(5.0).run(work())
    place.set()
    assert await task == "through"


def test_a_deadline_inside_a_queue_runs() -> None:
    """The scoring has its own: only the clocks around the queue stand still."""
    inner, outer = Deadline(0.1), Deadline(0.05)

    async def work() -> None:
        async with queued():
            await inner.run(for_ever())

    with pytest.raises(TimeoutError):
        simulated(World(), outer.run(work()))
    assert inner.has_expired and not outer.has_expired


def test_each_of_many_deadlines_fires_at_its_own_time() -> None:
    limits = [0.3, 0.5, 0.1, 0.4, 0.2]

    async def fired_after(limit: float) -> float:
        started = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await Deadline(limit).run(for_ever())
        return asyncio.get_running_loop().time() - started

    async def main() -> list[float]:
        ended = Deadline(0.05).run(asyncio.sleep(0.01))
        *fired, _ = await asyncio.gather(*map(fired_after, limits), ended)
        return [*fired, await fired_after(0.6)]

    assert simulated(World(), main()) == pytest.approx([*limits, 0.6])


def test_the_inner_deadline_ends_its_own_work_only() -> None:
    outer = Deadline(0.2)

    async def work() -> str:
        with pytest.raises(TimeoutError):
            await Deadline(0.1).run(for_ever())
        await asyncio.sleep(0.05)
        return "went on"

    assert simulated(World(), outer.run(work())) == "went on"
    assert outer.seconds_used == pytest.approx(0.15)


def test_a_cancellation_as_the_time_runs_out_is_no_less_one() -> None:
    async def main() -> None:
        deadline = Deadline(0.1)
        task = asyncio.create_task(deadline.run(for_ever()))
        asyncio.get_running_loop().call_later(0.1, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert deadline.has_expired

    simulated(World(), main())


def test_work_that_ignores_its_cancellation_gives_its_result() -> None:
    async def work() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await for_ever()
        await asyncio.sleep(0)
        return "late"

    async def main() -> tuple[str, bool, int]:
        deadline, task = Deadline(0.1), asyncio.current_task()
        assert task is not None
        return await deadline.run(work()), deadline.has_expired, task.cancelling()

    assert simulated(World(), main()) == ("late", True, 0)


@given(
    limit=st.floats(0.01, 10),
    parts=st.lists(st.tuples(st.sampled_from(["work", "queue", "two queues"]), st.floats(0, 4)), max_size=12),
)
def test_however_the_clock_stops_and_goes_on_it_counts_the_work_and_no_more(
    limit: float, parts: list[tuple[str, float]]
) -> None:
    worked = [0.0]

    async def work() -> None:
        for kind, seconds in parts:
            started = asyncio.get_running_loop().time()
            try:
                if kind == "work":
                    await asyncio.sleep(seconds)
                elif kind == "queue":
                    await in_queue(after(seconds))
                else:
                    await asyncio.gather(in_queue(after(seconds)), in_queue(after(seconds / 2)))
            finally:
                worked[0] += (asyncio.get_running_loop().time() - started) * (kind == "work")

    async def main() -> Deadline:
        deadline = Deadline(limit)
        try:
            await deadline.run(work())
        except TimeoutError:
            assert deadline.has_expired
        return deadline

    deadline = simulated(World(), main())
    total = sum(seconds for kind, seconds in parts if kind == "work")
    assert worked[0] <= limit + 1e-6
    assert deadline.seconds_used == pytest.approx(worked[0], abs=1e-6)
    if abs(total - limit) > 1e-6:
        assert deadline.has_expired == (total > limit)
