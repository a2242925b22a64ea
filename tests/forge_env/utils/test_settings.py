"""Settings: bounds at the field, and values that are read from text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Interval

from forge_env.core.errors import UserError
from forge_env.utils.settings import (
    LARGEST,
    MAY_CHANGE,
    OR_BY_CASE,
    Or,
    leaves,
    may_change,
    out_of_bounds,
    read_value,
    with_values,
)


@dataclass
class Inner:
    rate: Annotated[float, Gt(0)] = 0.5
    mode: Annotated[Literal["a", "b"], MAY_CHANGE] = "a"


@dataclass
class Store:
    keep_last: int = 2
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Config:
    output: str = ""
    inner: Inner = field(default_factory=Inner)
    store: Annotated[Store, MAY_CHANGE] = field(default_factory=Store)


def test_the_settings_of_a_tree_have_dotted_names_types_values_and_marks() -> None:
    assert [(setting.name, setting.kind, setting.value) for setting in leaves(Config())] == [
        ("output", str, ""),
        ("inner.rate", float, 0.5),
        ("inner.mode", Literal["a", "b"], "a"),
        ("store.keep_last", int, 2),
        ("store.options", dict[str, Any], {}),
    ]
    assert leaves(Config())[1].marks == (Gt(0),)


def test_a_tree_with_other_values_leaves_the_first_as_it_was() -> None:
    config = Config()
    changed = with_values(config, {"inner.rate": 0.1, "store.options.a": 1, "store.options.b.c": 2, "output": "x"})
    assert (changed.inner.rate, changed.store.options, changed.output) == (0.1, {"a": 1, "b": {"c": 2}}, "x")
    emptied = with_values(changed, {"store.options": {}, "store.options.d": 3})
    assert emptied.store.options == {"d": 3} and emptied.inner is changed.inner
    assert config == Config()


def test_a_setting_or_a_whole_section_may_change() -> None:
    assert may_change(Config()) == ["inner.mode", "store"]


@pytest.mark.parametrize(
    ("value", "marks", "words"),
    [
        *((0, [Ge(1)], "at least 1"), (0.5, [Ge(0.01)], ""), (0.0, [Ge(0.01)], "at least 0.01")),
        *((0, [Gt(0)], "above 0"), (0.1, [Gt(0)], ""), (2, [Interval(ge=0, le=1)], "from 0 to 1")),
        *(
            (1.5, [Interval(gt=0, le=1)], "above 0 and at most 1"),
            (1.0, [Interval(ge=0, lt=1)], "at least 0 and below 1"),
        ),
        *((-1, [Ge(0), OR_BY_CASE], ""), (-2, [Ge(0), OR_BY_CASE], "at least 0, or -1 for the default")),
        (0, [Ge(1), Or(-1, "for all that are left")], "at least 1, or -1 for all that are left"),
        *((LARGEST + 1, [], "at most 2147483647"), (1e12, [Ge(0)], ""), (float("inf"), [Gt(0)], "finite")),
        (-(10**400), [], ""),
    ],
)
def test_a_number_out_of_bounds_is_told_its_bounds(value: float, marks: list[Any], words: str) -> None:
    assert out_of_bounds(value, marks) == words


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        *(("7", int, 7), (" 7 ", int, 7), ("7.0", int, 7), (7.0, int, 7), (7.0, int | None, 7), ("3", int | None, 3)),
        *(([1, 7.0], list[int], [1, 7]), ("1e-5", float, 1e-5), (3, float, 3.0), ("1,2", tuple[int, ...], (1, 2))),
        *(("Yes", bool, True), ("0", bool, False), (1, bool, True), ("", Literal["", "a"], "")),
        *((5, str, "5"), (" a ", str, " a "), ("a", str | None, "a"), ('{"a": 1}', dict[str, int], {"a": 1})),
        *(("a, b,", list[str], ["a", "b"]), ("[]", list[str], []), (["a"], list[str], ["a"])),
    ],
)
def test_a_text_becomes_a_value_of_its_type(value: object, kind: Any, found: object) -> None:
    read = read_value(value, kind, "--x")
    assert read == found and type(read) is type(found)


@pytest.mark.parametrize(
    ("value", "kind", "allowed"),
    [
        *((value, int, "a whole number") for value in ("many", "2.5", 2.5, True, None)),
        *((value, float, "a finite number") for value in ("nan", True)),
        *((value, bool, "true or false") for value in ("maybe", 3)),
        *((value, str, "a text") for value in (True, ["a"])),
        *((value, list[int], "whole numbers, with commas between them") for value in ([1, 2.5], "1,x")),
        *((value, Annotated[int, Ge(1)], "a whole number, at least 1") for value in ("0", "x")),
        *(("c", Literal["", "a"], 'one of: "", a'), ([1], list[str], "texts, with commas between them")),
        *(("x", int | None, "a whole number"), ("{", dict[str, int], "a dictionary, in JSON")),
    ],
)
def test_a_value_of_another_type_is_refused_and_not_bent(value: object, kind: Any, allowed: str) -> None:
    with pytest.raises(UserError) as caught:
        read_value(value, kind, "--x")
    assert str(caught.value) == f"--x is {value!r}; it must be {allowed}"


def test_a_dictionary_that_is_nested_too_deeply_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"--env.options.x is .* it must be a dictionary, in JSON"):
        read_value("[" * 100_000, dict, "--env.options.x")
