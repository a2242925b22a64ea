"""The rows of an episode and where each comes from, as its page and the API show them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any


def rows_of(episode: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an episode, in its order; empty for an episode of one row.

    Returns:
        Of each row: its turns `first` to `last`, the number of its `parent` row and the turn `branch` there, None for a
        root; and `kind`, `why`, `agent`, `known_by` and `auxiliary` as text.
    """
    turns, lineage = episode["turns"], episode.get("lineage")
    entries = {
        row["turn"]: row
        for row in (lineage if isinstance(lineage, list) else ())
        if isinstance(row, dict) and _is_turn(row.get("turn"), turns)
    }
    starts = sorted(entries)
    rows = []
    for number, first in enumerate(starts):
        row, branch = entries[first], entries[first].get("parent")
        parent = bisect_right(starts, branch) - 1 if _is_turn(branch, turns) else -1
        is_known = parent >= 0 and parent != number
        rows.append(
            {
                "first": first,
                "last": (starts[number + 1] if number + 1 < len(starts) else len(turns)) - 1,
                "parent": parent if is_known else None,
                "branch": branch if is_known else None,
                **{name: str(row.get(name) or "") for name in ("kind", "why", "agent", "known_by")},
                "auxiliary": str(turns[first].get("auxiliary") or ""),
            }
        )
    return rows


def _is_turn(number: Any, turns: list[Any]) -> bool:
    return type(number) is int and 0 <= number < len(turns)
