"""YAML has the scalars of YAML 1.2, and what is written reads back the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forge_env.utils.yaml_text import read_yaml, write_yaml

GUESSED = ["on", "Off", "no", "YES", "y", "1_000", "12:30", "1:30:00", "012", "2024-03-01", "0b1", "1e", "0o8", "="]


@pytest.mark.parametrize("text", GUESSED)
def test_what_yaml_1_1_guesses_stays_text_as_a_value_and_as_a_key(text: str) -> None:
    assert read_yaml(f"a: {text}\n{text}: [{text}]") == {"a": text, text: [text]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            ("true", True),
            ("False", False),
            ("~", None),
            ("", None),
            ("12", 12),
            ("-3", -3),
            ("0o17", 15),
            ("0x1F", 31),
        ),
        *(("1e-6", 1e-6), ("1E5", 1e5), ("-.5", -0.5), ("5.", 5.0), (".inf", math.inf), ("'1e-6'", "1e-6")),
    ],
)
def test_numbers_booleans_and_null(text: str, value: Any) -> None:
    read = read_yaml(f"a: {text}")["a"]
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize("text", ["[" * 10**5, "- " * 10**5, "{a: " * 10**5])
def test_values_that_would_end_the_reader_in_c_are_refused(text: str) -> None:
    with pytest.raises(RecursionError, match="nested more than 100 deep"):
        read_yaml(text)


TEXTS = st.sampled_from([*GUESSED, "1e-6", "0o17", "0x1F", "true", "null", "~", "", "<<", ".5", "5."]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=8
)
DATA = st.recursive(
    TEXTS | st.booleans() | st.none() | st.integers() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(DATA)
def test_what_is_written_reads_back_the_same(data: Any) -> None:
    written = write_yaml(data)
    assert repr(read_yaml(written)) == repr(data)
    assert repr(yaml.safe_load(written)) == repr(data)  # for other readers
