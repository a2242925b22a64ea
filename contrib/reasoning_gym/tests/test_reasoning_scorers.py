"""The table of reasoning-gym's scorers: none of them is unsound."""

from __future__ import annotations

import json
from pathlib import Path

TABLE = json.loads((Path(__file__).parents[3] / "benchmarks/results/reasoning_scorers.json").read_text())


def test_no_scorer_of_the_table_is_unsound() -> None:
    assert [name for name, row in TABLE["datasets"].items() if row["verdict"] == "unsound"] == []
    assert [name for name, row in TABLE["datasets"].items() if row["verdict"] == "refused"] == ["game_of_life_halting"]
