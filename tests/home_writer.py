"""A test that does what no test may do: tests/test_suite.py runs it."""

from __future__ import annotations

from pathlib import Path


def test_that_writes_to_the_home_folder() -> None:
    (Path.home() / "left.txt").write_text("here")
