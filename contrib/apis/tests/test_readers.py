"""Readers of texts that models write take time in proportion to the text; see tests/test_readers.py."""

from __future__ import annotations

import re

import pytest

from contrib.apis.answers import same_answer
from contrib.apis.json_schema.validation import SchemaArguments
from tests.test_readers import MOST, SIZES, again, growth, slow_attacks

BY_PATTERN = SchemaArguments(
    {"type": "object", "properties": {"q": {"type": "string", "pattern": "^(a+)+$"}}}, where="the tool"
)
BY_NAME = SchemaArguments(
    {"type": "object", "patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": True},
    where="the tool",
)

READERS = {
    "answer of a tool": lambda text: same_answer(text, "42"),
    "answer of a tool, JSON": lambda text: same_answer(text, '{"a": [1]}'),
    "arguments of a tool, by a pattern": lambda text: BY_PATTERN({"q": text}),
    "names of a tool's arguments, by a pattern": lambda text: BY_NAME({text: "x"}),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion_to_the_text(name: str, size: int) -> None:
    assert slow_attacks(READERS[name], size) == {}


def old_pattern(text: str) -> object:
    return re.search("^(a+)+$", text)


def test_the_attack_works_where_the_text_is_read_as_it_was() -> None:
    attack = again("a", after="b")
    # Each letter takes twice as long: of 21 the time is still short.
    assert growth(old_pattern, lambda size: attack(min(size, 21)), 3) > MOST
    assert growth(READERS["arguments of a tool, by a pattern"], attack, 3) < MOST
