"""Tables of cases that lie beside a test, as text."""

from __future__ import annotations

import csv
from pathlib import Path


def rows(beside: str, name: str) -> list[list[str]]:
    """Return the rows of a .tsv file in the folder of the test file `beside`; a quoted cell may have several lines."""
    with (Path(beside).parent / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t"))
