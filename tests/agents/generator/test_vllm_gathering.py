"""When an engine holds a small batch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agents.generator.batch_delay import GAPS, BatchDelay


def after_a_burst(count: int, *, gather_s: float = 5.0, most_s: float = 10.0) -> BatchDelay:
    """`count` requests have come one after the other to an idle engine."""
    gathering = BatchDelay(gather_s=gather_s, most_s=most_s)
    for running in range(1, count + 1):
        gathering.on_arrival(running)
    return gathering


def test_an_idle_engine_waits_without_end() -> None:
    assert BatchDelay(gather_s=5.0, most_s=10.0).seconds_to_wait(0) is None


@pytest.mark.parametrize(
    ("running", "settings", "holds"),
    [
        (8, {}, False),
        (3, {}, True),  # while requests keep coming
        (1, {"gather_s": 0.0}, False),
        (3, {"most_s": 0.0}, False),
    ],
)
def test_a_small_batch_is_held_while_requests_keep_coming(
    running: int, settings: dict[str, float], holds: bool
) -> None:
    seconds = after_a_burst(8, **settings).seconds_to_wait(running)
    assert seconds is not None and (0 < seconds <= 5.0 if holds else seconds == 0)


def test_a_batch_is_not_delayed_if_no_request_comes() -> None:
    gathering = BatchDelay(gather_s=1e-9, most_s=10.0)
    gathering.on_arrival(8)
    assert gathering.seconds_to_wait(1) == 0, "the tail of a batch runs at full speed"


def test_on_a_busy_machine_the_delay_is_as_long_as_the_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("agents.generator.batch_delay.time", SimpleNamespace(monotonic=lambda: now))
    gathering = after_a_burst(100, gather_s=0.015)
    assert gathering.seconds_to_wait(0) is None
    for running in range(1, 11):
        now += 0.1
        gathering.on_arrival(running)
    assert gathering.seconds_to_wait(10) == pytest.approx(GAPS * 0.9 / 10)
    now += GAPS * 0.1
    assert gathering.seconds_to_wait(10) == 0


def test_the_peak_of_the_last_burst_is_remembered_over_one_idle_time_only() -> None:
    gathering = after_a_burst(8)
    assert gathering.seconds_to_wait(0) is None
    gathering.on_arrival(1)
    assert (gathering.seconds_to_wait(1) or 0) > 0, "siblings of the last burst are expected"
    assert gathering.seconds_to_wait(0) is None
    gathering.on_arrival(1)
    assert gathering.seconds_to_wait(1) == 0, "a lone request is not held for a burst of long ago"
