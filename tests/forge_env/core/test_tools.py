"""Tools: schemas from signatures and docstrings of every style, coerced arguments, and mistakes in one sentence."""

from __future__ import annotations

import enum
import json
import math
import sys
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.errors import UserError
from forge_env.core.json_text import ARGUMENTS, with_marks, without_marks
from forge_env.core.tools import BadCall, Tool, ToolOptions, make_tool, tool
from forge_env.core.types import ToolCall


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: float
    y: float = 0.0


class Place(TypedDict):
    city: str
    street: NotRequired[str]


class Order(pydantic.BaseModel):
    sku: str
    count: int = pydantic.Field(default=1, ge=1, description="how many")


def everything(
    text: str,
    maybe: int | None = None,
    mode: Literal["fast", "slow"] = "fast",
    colour: Colour = Colour.RED,
    numbers: list[float] = [],  # noqa: B006
    table: dict[str, int] = {},  # noqa: B006
    point: Point = Point(1.0),  # noqa: B008
    place: Place = {"city": "Rome"},  # noqa: B006
    order: Order = Order(sku="a"),  # noqa: B008
    schema: str = "a name that pydantic keeps for itself",
    untyped=None,
) -> dict[str, Any]:
    """Take one of each."""
    return locals()


def call(arguments: dict[str, Any] | None, **more: str) -> ToolCall:
    return ToolCall(id="c", name="tool", arguments=arguments, **more)


def test_every_kind_of_parameter_has_a_schema_and_is_coerced() -> None:
    made = make_tool(everything)
    jsonschema.Draft202012Validator.check_schema(dict(made.parameters))
    properties = made.parameters["properties"]
    assert set(properties) == set(everything.__annotations__) - {"return"} | {"untyped"}
    assert made.parameters["required"] == ["text"]
    assert properties["mode"]["enum"] == ["fast", "slow"]
    assert properties["schema"] == {"type": "string", "default": "a name that pydantic keeps for itself"}
    given_ = {
        "text": "a",
        "maybe": "3",
        "colour": "blue",
        "numbers": ["1", 2],
        "table": {"a": "1"},
        "point": {"x": 1},
        "place": {"city": "Oslo", "street": "Main"},
        "order": {"sku": "b", "count": 2},
    }
    values = made.function(**made.validate(call(given_)))
    assert values["maybe"] == 3 and values["colour"] is Colour.BLUE and values["numbers"] == [1.0, 2.0]
    assert values["table"] == {"a": 1} and values["point"] == Point(1.0) and values["place"]["street"] == "Main"
    assert values["order"] == Order(sku="b", count=2) and values["mode"] == "fast" and values["untyped"] is None
    values = made.validate(call({"text": "a"}))  # what is left out has the function's own default
    assert values["colour"] is Colour.RED and values["point"] == Point(1.0) and values["order"] == Order(sku="a")


def google(path: str, times: int = 1) -> str:
    """Read a file.

    It is read as text, and
    cut where it is long.

    Args:
        path: where the
            file is
        times: how often

    Returns:
        the text
    """
    return path * times


def numpy_style(path: str, times: int = 1) -> str:
    """Read a file.

    It is read as text, and
    cut where it is long.

    Parameters
    ----------
    path : str
        where the
        file is
    times : int, optional
        how often

    Returns
    -------
    str
        the text
    """
    return path * times


def sphinx(path: str, times: int = 1) -> str:
    """Read a file.

    It is read as text, and
    cut where it is long.

    :param path: where the
        file is
    :param times: how often
    :returns: the text
    """
    return path * times


@pytest.mark.parametrize("function", [google, numpy_style, sphinx])
def test_docstrings_of_three_styles_say_the_same(function: Any) -> None:
    made = make_tool(function, name="read")
    assert made.description == "Read a file.\n\nIt is read as text, and\ncut where it is long."
    described = {name: about["description"] for name, about in made.parameters["properties"].items()}
    assert described == {"path": "where the file is", "times": "how often"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, ["path", "required"]),
        ({"path": 3}, ["path", "string"]),
        ({"path": "a", "times": "many"}, ["times", "integer"]),
        ({"path": "a", "depth": 1}, ["depth", "not permitted"]),
        (None, ["not a JSON object", "Expecting"]),
    ],
)
def test_a_refusal_says_what_is_wrong_and_shows_the_schema(arguments: Any, words: list[str]) -> None:
    made = make_tool(google)
    with pytest.raises(BadCall) as refused:
        made.validate(call(arguments, error="Expecting value." if arguments is None else ""))
    text = str(refused.value)
    assert text.startswith("Error: ") and [word for word in words if word not in text] == []
    assert json.loads(text.partition("Schema: ")[2]) == dict(made.parameters)
    with pytest.raises(BadCall, match=r"order\.count: .*greater than or equal to 1"):
        make_tool(everything).validate(call({"text": "a", "order": {"sku": "b", "count": 0}}))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["text", "maybe", "point", "place", "order", "numbers", "?"]), anything))
def test_arguments_are_coerced_or_refused(arguments: dict[str, Any]) -> None:
    made = make_tool(everything)
    try:
        values = made.validate(call(arguments))
    except BadCall:
        return
    assert isinstance(values["text"], str) and isinstance(values["point"], Point)


def variadic(*paths: str) -> str:
    """Take any number."""
    return ""


def free(**options: str) -> str:
    """Take any name."""
    return ""


def positional(a: int, /) -> int:
    """Take a position."""
    return a


def opaque(lock: Tool) -> str:
    """Take what has no schema."""
    return ""


def dangling(a: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Name a type that is not there."""
    return ""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (variadic, r"variadic has the parameter \*paths"),
        (free, r"free has the parameter \*\*options"),
        (positional, "positional has the parameter a"),
        (opaque, "opaque takes something that has no JSON schema"),
        (dangling, "dangling cannot be read.*Nowhere"),
    ],
)
def test_a_signature_that_no_model_can_call_is_refused(function: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_tool(function)


@pytest.mark.parametrize(
    "settings",
    [
        *({"timeout": 0}, {"timeout": -1.0}, {"concurrency": 0}, {"max_output": 0}, {"retries": 2}),
        {"retries": -1, "idempotent": True},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        tool(**settings)


def test_the_mark_keeps_the_function_and_its_settings() -> None:
    @tool(timeout=2.0, parallel=True, fatal=KeyError)
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    assert add(1, 2) == 3
    assert make_tool(add).options == ToolOptions(timeout=2.0, parallel=True, fatal=(KeyError,))
    assert make_tool(add, options=ToolOptions(timeout=9.0)).options.timeout == 9.0


def odd(
    far: float = float("inf"),
    near: Annotated[float, pydantic.Field(ge=float("-inf"), le=2.0)] = float("nan"),
    some: set[str] = {"b", "a", "c"},  # noqa: B006
    day: date = date(2024, 3, 1),
    thing: Any = object(),  # noqa: B008
    colour: Colour = Colour.BLUE,
    points: list[Point] = [Point(float("inf"))],  # noqa: B006, B008
) -> dict[str, Any]:
    """Take odd ones."""
    return locals()


class Named(TypedDict):
    name: str


class Aged(Named, total=False):
    age: int


class Tree(TypedDict):
    children: "list[Tree]"  # noqa: UP037


def test_pydantics_fields_describe_bound_and_fill_parameters() -> None:
    def search(
        near: Annotated[int, pydantic.Field(description="how near", le=9)],
        n: int = pydantic.Field(10, ge=1, description="how many"),
        tags: list[str] = pydantic.Field(default_factory=lambda: ["new"]),  # noqa: B008
        query: str = pydantic.Field(description="what"),
    ) -> None:
        """Search.

        Args:
            n: a number.
        """

    made = make_tool(search)
    assert made.parameters["required"] == ["near", "query"]
    properties = made.parameters["properties"]
    assert properties["near"] == {"description": "how near", "maximum": 9, "type": "integer"}
    assert properties["n"] == {"description": "a number.", "default": 10, "minimum": 1, "type": "integer"}
    filled = {"near": 1, "query": "x", "n": 10, "tags": ["new"]}
    assert made.arguments({"near": 1, "query": "x"}) == filled


def test_a_typed_dict_needs_the_keys_of_its_parents() -> None:
    def take(person: Aged) -> None:
        """Take it."""

    made = make_tool(take)
    assert made.arguments({"person": {"name": "Ada"}}) == {"person": {"name": "Ada"}}
    with pytest.raises(ValueError, match="person.name: Field required"):
        made.arguments({"person": {}})


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes it")
def test_a_typed_dict_that_contains_itself_is_refused() -> None:
    def take(tree: Tree) -> None:
        """Take it."""

    with pytest.raises(UserError, match="the tool take takes Tree, a TypedDict of typing that contains itself"):
        make_tool(take)


def test_a_schema_is_json_whatever_the_defaults_are() -> None:
    made = make_tool(odd)
    parameters = json.loads(json.dumps(made.spec, allow_nan=False))["function"]["parameters"]["properties"]
    defaults = {name: schema["default"] for name, schema in parameters.items() if "default" in schema}
    assert defaults == {"some": ["a", "b", "c"], "day": "2024-03-01", "colour": "blue"}
    assert parameters["near"]["maximum"] == 2.0 and "minimum" not in parameters["near"]
    assert made.arguments({})["far"] == float("inf")


class Far(enum.Enum):
    EVER = float("inf")


def test_a_schema_that_cannot_be_json_is_one_sentence() -> None:
    def never(far: Far) -> None:
        """Take it."""

    with pytest.raises(
        UserError, match="the parameters of the tool never have a schema that cannot be written as JSON"
    ):
        make_tool(never)


def data(
    tags: list[str] = [],  # noqa: B006
    table: dict[str, list[int]] | None = None,
    point: Point | None = None,
    order: Order | None = None,
    some: set[int] | None = None,
    pair: tuple[int, str] = (0, ""),
    flag: str | bool = False,
    either: str | list[str] = "",
    number: int | list[int] = 0,
    anything: Any = None,
) -> dict[str, Any]:
    """Take data."""
    return locals()


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ({"tags": '["a", "b"]'}, ["a", "b"]),
        ({"table": '{"a": "[1, 2]"}'}, {"a": [1, 2]}),
        ({"table": {"a": "[1]"}}, {"a": [1]}),
        ({"point": '{"x": "1"}'}, Point(1.0)),
        ({"order": '{"sku": "a"}'}, Order(sku="a")),
        ({"some": "[2, 1]"}, {1, 2}),
        ({"pair": '[1, "a"]'}, (1, "a")),
        ({"flag": "true"}, "true"),
        ({"either": '["a"]'}, '["a"]'),
        ({"number": "[1]"}, [1]),
        ({"anything": "[1]"}, "[1]"),
    ],
)
def test_json_text_is_the_data_where_the_schema_wants_data_and_no_text(arguments: dict[str, Any], taken: Any) -> None:
    before = json.dumps(arguments)
    [name] = arguments
    assert make_tool(data).validate(call(arguments))[name] == taken
    assert json.dumps(arguments) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [*(("tags", text) for text in ("a", '{"a": 1}', "[NaN]", "")), ("table", '{"a": [1], "a": [2]}')],
)
def test_other_text_is_refused_where_data_is_wanted(name: str, text: str) -> None:
    with pytest.raises(BadCall, match=f"bad arguments for data: {name}"):
        make_tool(data).validate(call({name: text}))


def numbers(n: int = 0, x: float = 0.0, xs: list[float] | None = None, table: dict[str, int] | None = None) -> None:
    """Take numbers."""


@pytest.mark.parametrize("arguments", [{"n": True}, {"x": False}, {"xs": [1, True]}, {"table": {"a": False}}])
def test_a_boolean_is_no_number(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadCall, match=r"it must be a number, and true and false are none"):
        make_tool(numbers).validate(call(arguments))


class Spot(pydantic.BaseModel):
    x: float


@dataclass(slots=True)
class Span:
    low: float
    high: float = math.inf


class Size(TypedDict):
    width: float


@pytest.mark.parametrize(
    ("kind", "value", "place"),
    [
        (float, "nan", "number"),
        (float, "1e999", "number"),
        (float, float("nan"), "number"),
        (float | None, "inf", "number"),
        (dict[str, float], '{"a": 1e999}', "number.a"),
        (list[float], [1, "NaN"], "number.1"),
        (set[float], ["nan"], "number.0"),
        (list[dict[str, list[float]]], [{"a": [1, "inf"]}], "number.0.a.1"),
        (list[Spot], [{"x": 1}, {"x": "inf"}], "number.1.x"),
        (Span, {"low": "-inf"}, "number.low"),
        (Size, {"width": "1e999"}, "number.width"),
        (Any, {"a": [json.loads("1e999")]}, "number.a.0"),
        (Decimal, "NaN", "number"),
    ],
)
def test_a_number_that_json_has_not_is_refused_for_the_model(kind: Any, value: Any, place: str) -> None:
    def measure(number: Any, limit: float = math.inf) -> str:
        return ""

    measure.__annotations__["number"] = kind
    with pytest.raises(BadCall, match=rf"^Error: bad arguments for measure: {place}: .*finite number.* Schema: "):
        make_tool(measure).validate(call({"number": value}))


def test_a_default_and_a_text_may_be_what_they_are() -> None:
    def measure(number: float | str, limit: float = math.inf) -> str:
        return ""

    assert make_tool(measure).validate(call({"number": "nan"})) == {"number": "nan", "limit": math.inf}


def test_functions_are_given_plain_numbers() -> None:
    """Libraries such as PyYAML refuse the numbers that keep their digits."""

    def look(at: Any) -> str:
        """Look."""
        return str(at)

    call = json.loads('{"at": {"x": [5.0, -0, 1E5]}}', **ARGUMENTS)
    assert [*map(type, make_tool(look).arguments(call)["at"]["x"])] == [float, int, float]
    assert without_marks(json.dumps(with_marks(call))) == '{"at": {"x": [5.0, -0, 1E5]}}'
