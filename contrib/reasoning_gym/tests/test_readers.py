"""Readers of texts that models write take time in proportion to the text; see tests/test_readers.py."""

from __future__ import annotations

import pytest

from contrib.reasoning_gym import worker
from contrib.reasoning_gym.env import extract_answer
from tests.test_readers import SIZES, slow_attacks


def one_number(text: str) -> object:
    worker._numerals._parse.cache_clear()  # it would know the text of a second measurement
    return worker._is_one_number(text, {"answer": "42"})


READERS = {
    "reasoning-gym, answer": extract_answer,
    "reasoning-gym, one number": one_number,
    "reasoning-gym, moves": lambda text: [form.fullmatch(text) for form in worker._FORMS.values()],
    "reasoning-gym, formula": lambda text: worker._restrict(lambda *_: None)(text),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion_to_the_text(name: str, size: int) -> None:
    assert slow_attacks(READERS[name], size) == {}
