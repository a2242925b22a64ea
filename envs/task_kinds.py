"""Reads the kind of a task from a row of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge_env.core.errors import nearest
from forge_env.data.rows import BadRow


def kind_of_row(row: Mapping[str, Any], column: str = "") -> str:
    """Return the `Task.kind` of a row: its value in `column`, as a text; by default in "kind", if there is that column.

    Args:
        row: the row, by column.
        column: name of the column; "" is "kind", which a row may lack.

    Raises:
        BadRow: when the row lacks a column that is named.
    """
    if column and column not in row:
        raise BadRow(f"it has no column {column!r} for the kind. {nearest(column, row)}")
    kind = row.get(column or "kind")
    return "" if kind is None else str(kind).strip()
