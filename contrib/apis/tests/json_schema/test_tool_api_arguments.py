"""Made-up arguments fit the schemas that they are made for, whatever the tool takes; checks refuse and never break."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import AnyUrl, BaseModel, Field

from contrib.apis.json_schema.sampling import LARGEST, draw_arguments
from contrib.apis.json_schema.validation import SchemaArguments, output_check
from forge_env.core.tools import make_tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: float = 0.5


class Tree(BaseModel):
    name: Annotated[str, Field(min_length=12, max_length=14)]
    children: list[Tree] = []


def numbers(
    a: Annotated[int, Field(ge=-5, le=5)],
    b: Annotated[int, Field(gt=10)],
    c: Annotated[int, Field(lt=-3)],
    d: Annotated[float, Field(ge=0, le=1)],
    e: Annotated[int, Field(multiple_of=7)],
    f: int | str | None,
) -> None:
    """Take numbers."""


def texts(a: date, b: datetime, c: time, d: UUID, e: AnyUrl, f: Literal["x", "y"], g: Colour, h: Any) -> None:
    """Take texts."""


def nested(
    point: Point,
    tree: Tree,
    pairs: dict[str, int],
    pair: tuple[int, str],
    some: Annotated[list[int], Field(min_length=2, max_length=2)],
    words: set[str] | None = None,
) -> None:
    """Take structures."""


def none() -> None:
    """Take nothing."""


@pytest.mark.parametrize("function", [numbers, texts, nested, none])
@settings(deadline=None)
@given(seed=st.integers(0, 10**6), level=st.sampled_from(list(LARGEST)))
def test_they_fit(function: Callable[..., Any], seed: int, level: int) -> None:
    tool = make_tool(function)
    arguments = draw_arguments(tool.parameters, random.Random(seed), level=level)
    assert arguments == draw_arguments(tool.parameters, random.Random(seed), level=level)
    Draft202012Validator(tool.parameters).validate(arguments)
    assert tool.arguments(arguments).keys() >= arguments.keys()


def test_they_are_small_and_what_is_optional_comes_and_goes() -> None:
    def add(a: int, b: int = 0) -> int:
        return a + b

    rng = random.Random(0)
    for level, largest in LARGEST.items():
        drawn = [draw_arguments(make_tool(add).parameters, rng, level=level) for _ in range(100)]
        assert {len(arguments) for arguments in drawn} == {1, 2}
        assert largest // 2 < max(arguments["a"] for arguments in drawn) <= largest
        assert min(arguments["a"] for arguments in drawn) >= 0


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/gone"}}, "required": ["a"]},
        {"$ref": "#"},
    ],
)
def test_a_schema_that_nothing_fits_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the schema of its arguments"):
        draw_arguments(schema, random.Random(0))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "number", "multipleOf": 0.01}, 10**400),
        ({"type": "number"}, "1e999"),
        ({"type": "number"}, "NaN"),
        ({"type": "array"}, "[-Infinity]"),
        ({"type": "object"}, '{"b": 1, "b": 2}'),
    ],
    ids=["huge", "1e999", "NaN", "in a text", "two values"],
)
def test_a_number_that_no_float_or_no_json_holds_is_a_mistake_in_the_call(schema: dict[str, Any], value: Any) -> None:
    check = SchemaArguments({"type": "object", "properties": {"a": schema}}, where="the tool")
    with pytest.raises(ValueError, match=r"too large|is not of type"):
        check({"a": value})


def test_a_number_that_no_float_holds_breaks_the_schema_of_a_result() -> None:
    assert output_check({"properties": {"a": {"multipleOf": 0.01}}})({"a": 10**400}) == "a number in it is too large"
