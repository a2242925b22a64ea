"""Final answers of tool_api: equal texts, numbers and JSON are the same; everything else is not, and nothing raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrib.apis.answers import same_answer

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        (" 8.0\n", 8),
        ("1,000", "1000"),
        ("+.5", 0.5),
        ("1e3", "1000"),
        ("a  b\nc", "a b c"),
        ("true", True),
        ('{"b": [2.0, true],  "a": 1}', {"a": 1, "b": [2, True]}),
        ("<think>7 or 8?</think> 8", "8"),
        ("NaN", "NaN"),
    ],
)
def test_the_same(answer: str, target: Any) -> None:
    assert same_answer(answer, target)


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        ("", ""),
        (" ", "8"),
        ("It is 8", "8"),
        ("8 9", "89"),
        ("8_0", "80"),
        ("\u0668", "8"),
        ("<think>8</think>", "8"),
        ("<think>8", "8"),
        ("True", True),
        ("1", True),
        ("[true]", [1]),
        ("[2, 1]", [1, 2]),
        ('{"a": 1, "b": 2}', {"a": 1}),
        ("paris", "Paris"),
        ("[" * 100_000, [1]),
        ("9" * 200_000, "9"),
        ("1e9999999999", "8"),
    ],
)
def test_not_the_same(answer: str, target: Any) -> None:
    assert not same_answer(answer, target)


@given(json_values)
def test_json_is_the_same_as_itself_however_it_is_written(value: Any) -> None:
    if json.dumps(value).strip('"').split():
        assert same_answer(json.dumps(value, indent=1, sort_keys=True), value) or isinstance(value, str)
        assert not same_answer(json.dumps([value, value]), value)


@given(st.text() | st.sampled_from(["[", "{", "1e9", "nan", "<think>"]), st.text() | json_values)
def test_nothing_that_is_written_raises(answer: str, target: Any) -> None:
    same_answer(answer, target)
    same_answer("[" + answer, [target])
