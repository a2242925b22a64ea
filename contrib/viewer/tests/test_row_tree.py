"""The rows of an episode as the page shows them, from records in which anything may stand."""

from __future__ import annotations

from typing import Any

import pytest

from contrib.viewer.episode_detail import rows_of


def test_each_row_has_its_turns_its_parent_row_and_whether_it_is_auxiliary() -> None:
    lineage = [
        {"turn": 0, "kind": "auxiliary", "why": "a title", "parent": None},
        {"turn": 1, "kind": "sub_agent", "why": "w", "parent": 4, "known_by": "call", "agent": "a"},
        {"turn": 3},
    ]
    turns: list[dict[str, Any]] = [{"auxiliary": "a title"}, {}, {}, {}, {}]
    title, sub, main = rows_of({"turns": turns, "lineage": lineage})
    assert title["auxiliary"] == "a title" and (title["first"], title["last"], title["parent"]) == (0, 0, None)
    assert (sub["first"], sub["last"], sub["parent"], sub["branch"]) == (1, 2, 2, 4)
    assert (sub["kind"], sub["known_by"], sub["agent"], sub["auxiliary"]) == ("sub_agent", "call", "a", "")
    assert (main["first"], main["last"], main["parent"], main["kind"]) == (3, 4, None, "")


@pytest.mark.parametrize(
    "lineage", [None, "x", [None, 3, {"turn": 9}, {"turn": True}], [{"turn": 0, "parent": 1, "kind": {"a": 1}}]]
)
def test_a_broken_lineage_is_shown_as_far_as_it_can_be(lineage: Any) -> None:
    rows = rows_of({"turns": [{}, {}], "lineage": lineage})
    assert all(row["parent"] is None for row in rows)
