"""Reads the kind of a task from a row of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge_env.data.rows import field_of


def kind_of_row(row: Mapping[str, Any], column: str = "") -> str:
    """Return the `Task.kind` of a row: its value in `column`, as a text; by default in "kind", if there is that column.

    Args:
        column: name of the column, or of a field as `field_of` has it; "" is "kind", which a row may lack.
    """
    kind = field_of(row, column, what="kind") if column else row.get("kind")
    return "" if kind is None else str(kind).strip()
