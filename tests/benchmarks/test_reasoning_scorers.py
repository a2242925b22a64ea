"""The table of reasoning-gym's scorers: it is of all datasets, none of them is unsound, and it can be made again."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.reasoning_scorers import measure, table
from envs.reasoning.env import dataset_names
from envs.reasoning.process import worker
from tests.helpers.packages import needs

pytestmark = needs("reasoning_gym")

TABLE = json.loads((Path(__file__).parents[2] / "benchmarks/results/reasoning_scorers.json").read_text())


def test_the_table_is_of_all_datasets_and_none_is_unsound() -> None:
    if TABLE["versions"]["reasoning-gym"] == version("reasoning-gym"):
        assert sorted(TABLE["datasets"]) == dataset_names()
    assert [name for name, row in TABLE["datasets"].items() if row["verdict"] == "unsound"] == []
    assert [name for name, row in TABLE["datasets"].items() if row["verdict"] == "refused"] == ["game_of_life_halting"]


@pytest.mark.slow
def test_a_scorer_is_probed() -> None:
    try:
        assert measure("coin_flip", count=5)["verdict"] == "sound"
        assert measure("game_of_life_halting", count=5)["verdict"] == "refused"
    finally:
        worker.close()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_scorers_are_as_the_table_says() -> None:
    result = table(dataset_names())["datasets"]
    worker.close()
    assert {n: row["verdict"] for n, row in result.items()} == {
        n: row["verdict"] for n, row in TABLE["datasets"].items()
    }
