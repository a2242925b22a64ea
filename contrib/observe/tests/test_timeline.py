"""The timeline is what trace viewers read, also after a kill."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from contrib.observe.timeline import Timeline


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())


def test_spans_nest_and_overlap_in_lanes(tmp_path: Path) -> None:
    async def run(timeline: Timeline) -> None:
        first, second = asyncio.Event(), asyncio.Event()

        async def group(name: str, wait: asyncio.Event) -> None:
            with timeline.span("rollouts", name, {"group": name}):
                await wait.wait()

        a, b = asyncio.create_task(group("a", first)), asyncio.create_task(group("b", second))
        await asyncio.sleep(0)
        with timeline.span("training", "step 1", {}):
            first.set()
            await a
        await group("c", first)  # takes the lane that a left
        second.set()
        await b

    path = tmp_path / "trace.json"
    timeline = Timeline(tmp_path)
    asyncio.run(run(timeline))
    found = events(path)
    timeline.close()
    spans = {event["name"]: event for event in found if event["ph"] == "X"}
    names = {event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"}
    lanes = {"a": "rollouts", "b": "rollouts 2", "c": "rollouts", "step 1": "training"}
    assert {name: names[span["tid"]] for name, span in spans.items()} == lanes
    assert spans["a"]["args"] == {"group": "a"}
    step = spans["step 1"]
    assert spans["b"]["ts"] <= step["ts"] and step["ts"] + step["dur"] <= spans["b"]["ts"] + spans["b"]["dur"]


@pytest.mark.parametrize("torn", ["", ',{"pid": 1, "name": "half', ',{"pid": 1, "name": "' + "half" * 999])
def test_a_block_that_raises_is_recorded_and_a_resumed_run_appends(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "trace.json"
    for name in ("before", "after"):
        timeline = Timeline(tmp_path)
        assert isinstance(events(path), list)
        with pytest.raises(ValueError), timeline.span("training", name, {}):
            raise ValueError
        assert events(path)[-1]["name"] == name, "JSON while the run goes on, and if it is killed"
        timeline.close()
        if torn:  # what a full disk leaves
            path.write_text(path.read_text().removesuffix("]") + torn)
    Timeline(tmp_path).close()
    assert [event["name"] for event in events(path) if event["ph"] == "X"] == ["before", "after"]


def test_spans_of_the_past_lie_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    timeline = Timeline(tmp_path)
    timeline.past(
        "start", [("engine", 1002.0, 6.0), ("model", 1000.0, 2.0), ("trainer", 1003.0, 1.0), ("envs", 1004.0, 1.0)]
    )
    timeline.close()
    names = {event["tid"]: event["args"]["name"] for event in events(path) if event["name"] == "thread_name"}
    spans = {event["name"]: event for event in events(path) if event["ph"] == "X"}
    lanes = {"model": "start", "engine": "start", "trainer": "start 2", "envs": "start 2"}
    assert {name: names[span["tid"]] for name, span in spans.items()} == lanes
    assert spans["engine"]["ts"] == 1_002_000_000 and spans["engine"]["dur"] == 6_000_000
