"""Readers of texts that models write take time in proportion to the text; see tests/test_readers.py."""

from __future__ import annotations

import re
from typing import Any

import pytest
from gymnasium import spaces

from contrib.gymnasium.text import plain_text
from contrib.gymnasium.text.spaces import parse_action
from tests.test_readers import ATTACKS, MOST, SIZES, Read, growth, slow_attacks


def chosen(space: spaces.Space[Any], *names: str) -> Read:
    return lambda text: parse_action(text, space, names)


READERS = {
    "action, Discrete": chosen(spaces.Discrete(4), "left", "down", "right", "up"),
    "action, MultiDiscrete": chosen(spaces.MultiDiscrete([3, 3])),
    "action, Box": chosen(spaces.Box(-1, 1, (1,))),
    "action, Text": chosen(spaces.Text(10)),
    "a coloured text": plain_text,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion_to_the_text(name: str, size: int) -> None:
    assert slow_attacks(READERS[name], size) == {}


def old_colours(text: str) -> object:
    return re.sub(r"((?:\x1b\[[\d;]*m)+)(.*?)\x1b\[0?m", "", text, flags=re.DOTALL)


def test_the_attack_works_where_the_text_is_read_as_it_was() -> None:
    attack = ATTACKS["'\\x1b[31m' again"]
    assert growth(old_colours, attack, 120) > MOST
    assert growth(plain_text, attack, 120) < MOST
