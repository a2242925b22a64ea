"""Readers of texts that models write take time in proportion to the text; see tests/test_readers.py."""

from __future__ import annotations

import pytest

from contrib.judges.judge import read_verdict
from tests.test_readers import SIZES, slow_attacks

READERS = {"a verdict": lambda text: read_verdict(text, 10)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion_to_the_text(name: str, size: int) -> None:
    assert slow_attacks(READERS[name], size) == {}
