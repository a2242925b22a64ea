"""The committed table of set-ups is what the plan says now."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.fit import SET_UPS, measure

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "fit.json"


def test_the_committed_set_ups_are_those_of_the_present_plan() -> None:
    committed = json.loads(RESULT.read_text())["set_ups"]
    assert len(committed) == len(SET_UPS) >= 12
    for set_up, expected in zip(SET_UPS, committed, strict=True):
        assert measure(*set_up) == expected, "python -m benchmarks.fit --json benchmarks/results/fit.json"
        assert expected["fits"] is (expected["fullest_card_gib"] <= expected["gib_of_a_card"])
