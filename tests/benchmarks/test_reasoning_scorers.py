"""The table of reasoning-gym's scorers: it is of all datasets, and none of them is unsound."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from envs.reasoning.env import dataset_names
from tests.helpers.packages import needs

pytestmark = needs("reasoning_gym")

TABLE = json.loads((Path(__file__).parents[2] / "benchmarks/results/reasoning_scorers.json").read_text())


def test_the_table_is_of_all_datasets_and_none_is_unsound() -> None:
    if TABLE["versions"]["reasoning-gym"] == version("reasoning-gym"):
        assert sorted(TABLE["datasets"]) == dataset_names()
    assert [name for name, row in TABLE["datasets"].items() if row["verdict"] == "unsound"] == []
    assert [name for name, row in TABLE["datasets"].items() if row["verdict"] == "refused"] == ["game_of_life_halting"]
