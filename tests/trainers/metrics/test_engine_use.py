"""The metrics of the engines are differences of two readings, over all engines, also where one was replaced."""

from __future__ import annotations

import asyncio

import pytest

from agents.generator.stats import EngineStats
from trainers.metrics.engine_use import EngineUse

pytest.importorskip("monarch")

from agents.generator.policy import PolicyActor
from forge_env.runtime.calls.client import ServiceClient
from forge_env.runtime.calls.endpoints import endpoint_table


def stats(steps: int, **counts: float) -> EngineStats:
    return EngineStats(steps=steps, **counts)  # type: ignore[arg-type]


def test_means_and_rates_are_of_the_steps_since_the_last_reading() -> None:
    use = EngineUse()
    first = use.since([stats(10, request_steps=40, prefix_asked=100, prefix_found=50, preemptions=1)])
    assert (first["engine/batch"], first["engine/prefix_hit_rate"], first["engine/preemptions"]) == (4.0, 0.5, 1)
    later = stats(30, request_steps=60, cache_steps=5.0, prefix_asked=300)
    later.prefix_found, later.preemptions = 200, 1
    assert use.since([later]) == {
        "engine/batch": 1.0,
        "engine/cache_usage": 0.25,
        "engine/preemptions": 0,
        "engine/prefix_hit_rate": 0.75,
        "engine/prompt_tokens": 200,
    }


def test_the_thread_works_where_it_does_not_wait_for_the_worker() -> None:
    """Of two engines in 10 s each: 8 s of steps, 2 of them the worker's, and 1 s of admission."""
    use = EngineUse()
    use.since([stats(0, clock=1.0), stats(0, clock=5.0)])
    found = use.since(
        [
            stats(10, request_steps=3000, step_seconds=8.0, worker_seconds=2.0, clock=11.0),
            stats(0, clock=15.0, admission_seconds=1.0),
        ]
    )
    assert (found["engine/thread_busy"], found["engine/worker_share"]) == (7.0 / 20.0, 0.25)
    assert found["engine/us_per_request"] == 2000.0


def test_without_steps_there_is_nothing_to_say() -> None:
    use = EngineUse()
    assert use.since([stats(0)]) == {}
    use.since([stats(5, request_steps=5)])
    assert use.since([stats(5, request_steps=5)]) == {}


def test_an_engine_that_was_replaced_counts_from_its_start() -> None:
    use = EngineUse()
    use.since([stats(100, request_steps=300), stats(100, request_steps=300)])
    assert use.since([stats(110, request_steps=310), stats(20, request_steps=80)])["engine/batch"] == 3.0


async def test_a_reading_ends_with_what_it_is_beside() -> None:
    """Without engines there is nothing to read; a step that fails leaves no task behind."""
    engines: ServiceClient[PolicyActor] = ServiceClient("generator", endpoint_table(PolicyActor))
    async with EngineUse().reading(engines) as reading:
        assert await reading == {}
    with pytest.raises(ValueError, match="the step failed"):
        async with EngineUse().reading(engines) as reading:
            raise ValueError("the step failed")
    assert reading.cancelled()
    stepping = asyncio.create_task(_step_for_ever(engines, readings := []))
    while not readings:
        await asyncio.sleep(0)
    stepping.cancel()
    await asyncio.wait({stepping})
    assert stepping.cancelled() and readings[0].done()


async def _step_for_ever(engines: ServiceClient[PolicyActor], readings: list[asyncio.Task[dict[str, float]]]) -> None:
    async with EngineUse().reading(engines) as reading:
        readings.append(reading)
        await asyncio.Event().wait()
