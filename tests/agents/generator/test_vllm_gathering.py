"""When an engine holds a small batch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agents.generator.batch_delay import GAPS, BatchDelay


def after_a_burst(gathering: BatchDelay, count: int) -> None:
    """`count` requests come one after the other to an idle engine."""
    for running in range(1, count + 1):
        gathering.on_arrival(running)


def test_an_idle_engine_waits_without_end_and_a_busy_one_not_at_all() -> None:
    gathering = BatchDelay(gather_s=5.0, most_s=10.0)
    assert gathering.seconds_to_wait(0) is None
    after_a_burst(gathering, 8)
    assert gathering.seconds_to_wait(8) == 0


def test_a_small_batch_is_held_while_requests_keep_coming() -> None:
    gathering = BatchDelay(gather_s=5.0, most_s=10.0)
    after_a_burst(gathering, 8)
    assert 0 < (gathering.seconds_to_wait(3) or 0) <= 5.0


def test_on_a_busy_machine_the_delay_is_as_long_as_the_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("agents.generator.batch_delay.time", SimpleNamespace(monotonic=lambda: now))
    gathering = BatchDelay(gather_s=0.015, most_s=10.0)
    after_a_burst(gathering, 100)
    assert gathering.seconds_to_wait(0) is None
    for running in range(1, 11):
        now += 0.1
        gathering.on_arrival(running)
    assert gathering.seconds_to_wait(10) == pytest.approx(GAPS * 0.9 / 10)
    now += GAPS * 0.1
    assert gathering.seconds_to_wait(10) == 0


def test_without_a_delay_no_batch_is_held() -> None:
    gathering = BatchDelay(gather_s=0.0, most_s=10.0)
    after_a_burst(gathering, 8)
    assert gathering.seconds_to_wait(1) == 0


def test_a_batch_is_delayed_no_longer_than_the_limit() -> None:
    gathering = BatchDelay(gather_s=5.0, most_s=0.0)
    after_a_burst(gathering, 8)
    assert gathering.seconds_to_wait(3) == 0


def test_a_batch_is_not_delayed_if_no_request_comes() -> None:
    gathering = BatchDelay(gather_s=1e-9, most_s=10.0)
    gathering.on_arrival(8)
    assert gathering.seconds_to_wait(1) == 0, "the tail of a batch runs at full speed"


def test_the_peak_of_the_last_burst_is_remembered_over_one_idle_time_only() -> None:
    gathering = BatchDelay(gather_s=5.0, most_s=10.0)
    after_a_burst(gathering, 8)
    assert gathering.seconds_to_wait(0) is None
    after_a_burst(gathering, 1)
    assert (gathering.seconds_to_wait(1) or 0) > 0, "siblings of the last burst are expected"
    assert gathering.seconds_to_wait(0) is None
    after_a_burst(gathering, 1)
    assert gathering.seconds_to_wait(1) == 0, "a lone request is not held for a burst of long ago"
