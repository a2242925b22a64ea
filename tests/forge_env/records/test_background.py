"""A sink in a thread of its own: whatever it does, the run goes on and is told what is missing."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from forge_env.records.sinks import Background, Record


class Kept:
    """Keeps what it is told; waits for `gate` before each record, and raises at step `bad`."""

    def __init__(self, bad: int = -1) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.bad = bad
        self.records: list[Record] = []
        self.is_closed = False

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        self.gate.wait(60)
        if step == self.bad:
            raise OSError(28, "No space left on device")
        self.records.append(Record(phase, step, values))

    def close(self) -> None:
        self.is_closed = True


class Forgets(Kept):
    def go_back(self, records: Sequence[Record]) -> None:
        self.records = list(records)


def background(sink: Any, **settings: Any) -> tuple[Background, list[str]]:
    messages: list[str] = []
    return Background("the sink", lambda: sink, messages.append, **settings), messages


def test_everything_arrives_in_order() -> None:
    sink = Kept()
    front, output = background(sink)
    values = {"loss": 1.0}
    for step in range(100):
        front.log("train", step, values)
        values["loss"] += 1.0  # the record is of the moment
    front.close()
    assert [(r.step, r.values["loss"]) for r in sink.records] == [(step, step + 1.0) for step in range(100)]
    assert sink.is_closed and output == []


def test_going_back_reaches_a_sink_that_can_and_no_other() -> None:
    stays = [Record("train", 1, {})]
    for sink, expected in ((Forgets(), [1, 5]), (Kept(), [1, 2, 5])):
        front, output = background(sink)
        for step in (1, 2):
            front.log("train", step, {})
        front.go_back(stays)
        front.log("train", 5, {})
        front.close()
        assert [record.step for record in sink.records] == expected and output == []


def test_a_sink_that_raises_or_cannot_be_made_is_switched_off_with_one_line() -> None:
    sink = Kept(bad=2)
    front, output = background(sink)
    for step in range(5):
        front.log("train", step, {})
    front.close()
    assert [record.step for record in sink.records] == [0, 1] and front.is_off
    assert output == ["warning: the sink is switched off: OSError: [Errno 28] No space left on device"]
    front.log("train", 9, {})  # and is not asked again

    def make() -> Kept:
        raise ConnectionError("no route\nto host")

    messages: list[str] = []
    front = Background("the sink", make, messages.append)
    front.log("train", 1, {})
    front.close()
    assert messages == ["warning: the sink is switched off: ConnectionError: no route to host"]


@pytest.mark.timeout(60)
def test_a_sink_that_hangs_delays_nothing_and_what_it_missed_is_counted() -> None:
    sink = Kept()
    sink.gate.clear()
    front, output = background(sink, backlog=3, close_seconds=0.2)
    for step in range(10):  # would never return if it waited for the sink
        front.log("train", step, {})
    # One may be in the sink's hands and three wait for it, however the threads are scheduled.
    assert front.num_dropped in (6, 7)
    assert output == ["warning: the sink is 3 records behind: what it cannot take is dropped"]
    front.close()
    assert output[1].startswith("warning: the sink did not finish within 0.2 s")
    assert output[2] == f"warning: the sink was too slow: {front.num_dropped} records are not in it"
    sink.gate.set()
