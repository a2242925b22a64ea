"""The benchmark of the environments' processes runs, with the model in them and in a process of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

pytest.importorskip("monarch")

from benchmarks.env_servers import SIBLINGS, measure
from benchmarks.rollouts import TURNS


@pytest.mark.parametrize("way", ["text", "service"])
async def test_whole_groups_are_counted_and_no_turn_is_quicker_than_the_model(way: str, tiny_model: Path) -> None:
    given = argparse.Namespace(processes=2, episodes=2 * SIBLINGS, model_ms=20.0, rounds=3)
    found = await measure(way, str(tiny_model), given)
    assert found["turns"] > 0 and found["turns"] % (SIBLINGS * TURNS) == 0, "whole groups"
    assert 0.99 <= found["turn_p50_over_ideal"] <= found["turn_p99_over_ideal"]
    assert found["ideal_over_turns_per_second"] > 0
    processes = {"envs_0", "envs_1", "controller"} | ({"policy"} if way == "service" else set())
    assert set(found["cpu_seconds"]) == processes
