"""The metrics of the engines are differences of two readings, over all engines, also where one was replaced."""

from __future__ import annotations

from agents.generator.stats import EngineStats
from trainers.run.engine_use import EngineUse


def stats(steps: int, **counts: float) -> EngineStats:
    return EngineStats(steps=steps, **counts)  # type: ignore[arg-type]


def test_means_and_rates_are_of_the_steps_since_the_last_reading() -> None:
    use = EngineUse()
    first = use.since([stats(10, request_steps=40, prefix_asked=100, prefix_found=50, preemptions=1)])
    assert (first["engine/batch"], first["engine/prefix_hit_rate"], first["engine/preemptions"]) == (4.0, 0.5, 1)
    later = stats(30, request_steps=60, place_steps=200, waiting_steps=20, cache_steps=5.0, prefix_asked=300)
    later.prefix_found, later.preemptions = 200, 1
    assert use.since([later]) == {
        "engine/batch": 1.0,
        "engine/places": 10.0,
        "engine/waiting": 1.0,
        "engine/cache_usage": 0.25,
        "engine/preemptions": 0,
        "engine/prefix_hit_rate": 0.75,
        "engine/prompt_tokens": 200,
    }


def test_without_steps_there_is_nothing_to_say() -> None:
    use = EngineUse()
    assert use.since([stats(0)]) == {}
    use.since([stats(5, request_steps=5)])
    assert use.since([stats(5, request_steps=5)]) == {}


def test_an_engine_that_was_replaced_counts_from_its_start() -> None:
    use = EngineUse()
    use.since([stats(100, request_steps=300), stats(100, request_steps=300)])
    assert use.since([stats(110, request_steps=310), stats(20, request_steps=80)])["engine/batch"] == 3.0
