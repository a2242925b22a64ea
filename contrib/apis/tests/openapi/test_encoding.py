"""Styles of parameters: the Style Examples of OpenAPI 3.1, reserved characters, and no two values alike."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

import pytest

from agents.renderer.model_json import read_arguments
from contrib.apis.http.client import ApiClient
from contrib.apis.openapi.encoding import Encoded, encode
from contrib.apis.openapi.operations import Operation
from contrib.apis.openapi.tools import OpenApi
from forge_env.core.tools import Tool

SPACED, PIPED = "color=blue%20black%20brown", "color=blue%7Cblack%7Cbrown"
LIST, OBJECT = ["blue", "black", "brown"], {"R": 100, "G": 200, "B": 150}
STYLES = {
    "path": [(style, explode) for style in ("simple", "label", "matrix") for explode in (False, True)],
    "query": [(style, False) for style in ("form", "spaceDelimited", "pipeDelimited")]
    + [("form", True), ("deepObject", True)],
    "header": [("simple", False), ("simple", True)],
    "cookie": [("form", False), ("form", True)],
}


@functools.cache
def api_of(place: str, style: str, explode: bool, more: str) -> tuple[Operation, Tool]:
    """The operation with one parameter, and its tool; `more` is what else is said of the parameter, as JSON."""
    parameter = {"name": "color", "in": place, "style": style, "explode": explode, **json.loads(more)}
    if place == "path":
        parameter["required"] = True
    operation = {"operationId": "do", "parameters": [parameter], "responses": {}}
    document = {"openapi": "3.1.0", "info": {}, "paths": {"/{color}" if place == "path" else "/": {"get": operation}}}
    api = OpenApi(document)
    [tool] = api.tools(ApiClient())
    return api.operations[0], tool


def encoded(place: str, style: str, explode: bool, value: Any, schema: Any = None, **said: Any) -> Encoded:
    operation, tool = api_of(place, style, explode, json.dumps({"schema": schema or {}, **said}))
    return encode(operation, tool.arguments({"color": value}) if schema else {"color": value})


def sent(place: str, style: str, explode: bool, value: Any, schema: Any = None, **said: Any) -> str:
    request = encoded(place, style, explode, value, schema, **said)
    headers = {"header": request.headers.get("color", ""), "cookie": request.headers.get("Cookie", "")}
    return headers.get(place, request.target.removeprefix("/").removeprefix("?"))


@pytest.mark.parametrize(
    ("place", "style", "explode", "empty", "text", "items", "fields"),
    [
        ("path", "matrix", False, ";color", ";color=blue", ";color=blue,black,brown", ";color=R,100,G,200,B,150"),
        ("path", "matrix", True, ";color", ";color=blue", ";color=blue;color=black;color=brown", ";R=100;G=200;B=150"),
        ("path", "label", False, None, ".blue", ".blue,black,brown", ".R,100,G,200,B,150"),
        ("path", "label", True, None, ".blue", ".blue.black.brown", ".R=100.G=200.B=150"),
        ("path", "simple", False, None, "blue", "blue,black,brown", "R,100,G,200,B,150"),
        ("path", "simple", True, None, "blue", "blue,black,brown", "R=100,G=200,B=150"),
        ("header", "simple", False, "", "blue", "blue,black,brown", "R,100,G,200,B,150"),
        ("header", "simple", True, "", "blue", "blue,black,brown", "R=100,G=200,B=150"),
        ("query", "form", False, "color=", "color=blue", "color=blue,black,brown", "color=R,100,G,200,B,150"),
        ("query", "form", True, "color=", "color=blue", "color=blue&color=black&color=brown", "R=100&G=200&B=150"),
        ("cookie", "form", False, "color=", "color=blue", "color=blue,black,brown", "color=R,100,G,200,B,150"),
        ("cookie", "form", True, "color=", "color=blue", "color=blue; color=black; color=brown", "R=100; G=200; B=150"),
        ("query", "spaceDelimited", False, "color=", "color=blue", SPACED, "color=R%20100%20G%20200%20B%20150"),
        ("query", "pipeDelimited", False, "color=", "color=blue", PIPED, "color=R%7C100%7CG%7C200%7CB%7C150"),
        ("query", "deepObject", True, "color=", "color=blue", None, "color[R]=100&color[G]=200&color[B]=150"),
    ],
)
def test_the_style_examples(
    place: str, style: str, explode: bool, empty: str | None, text: str, items: str | None, fields: str
) -> None:
    if empty is None:  # it would be another path
        with pytest.raises(ValueError, match="cannot stand in the path of a URL"):
            sent(place, style, explode, "")
    else:
        assert sent(place, style, explode, "") == empty
    assert sent(place, style, explode, "blue") == text
    assert items is None or sent(place, style, explode, LIST) == items
    assert sent(place, style, explode, OBJECT) == fields


SIGNS = (",", " ", "|", ";", ".", "=", "&", "%2C", "%", "]", "/", "#", "?")
HOSTILE = ["a", "b", *(f"a{sign}b" for sign in SIGNS), " ", ""]
ALL = [(place, *style) for place, styles in STYLES.items() for style in styles]


@pytest.mark.parametrize(("place", "style", "explode"), ALL)
def test_no_two_values_are_sent_alike(place: str, style: str, explode: bool) -> None:
    lists = [list(items) for n in (1, 2, 3) for items in itertools.product(HOSTILE[: 17 if n < 3 else 6], repeat=n)]
    objects = [{"k": one, "l": other} for one, other in itertools.product(HOSTILE, repeat=2)]
    for values in (lists, objects) if style != "deepObject" else (objects,):
        seen: dict[str, Any] = {}
        for value in values:
            try:
                text = sent(place, style, explode, value)
            except ValueError as error:
                assert "separates the items here" in str(error) or "cannot stand in the path" in str(error)
                continue
            assert seen.setdefault(text, value) == value
        assert len(seen) > len(values) // 3


@pytest.mark.parametrize(("place", "style", "explode"), ALL)
def test_what_is_undefined_is_left_out(place: str, style: str, explode: bool) -> None:
    for value in (None, [], {}, [None], {"a": None}):
        if place == "path":
            with pytest.raises(ValueError, match="cannot stand in the path"):
                sent(place, style, explode, value)
        else:
            assert sent(place, style, explode, value) == ""
            assert encoded(place, style, explode, value).headers == {}


@pytest.mark.parametrize(
    ("written", "schema", "text"),
    [
        ("1.10", {"type": "number"}, "1.10"),
        ("5.0", {"type": "number"}, "5.0"),
        ("5.0", {"type": "integer"}, "5"),
        ("9007199254740993.0", {"type": "integer"}, "9007199254740993"),
        ("1e23", {"type": "integer"}, "1" + 23 * "0"),
        ("1E5", {"type": "number"}, "1E5"),
        ("[1E5]", {"type": "array", "items": {"type": "integer"}}, "100000"),
        ("-0", {"type": "number"}, "-0"),
        ("5.0", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5"),
        ("5.0", {"anyOf": [{"type": "integer"}, {"type": "number"}]}, "5.0"),
        ("5.0", {"type": ["string", "integer", "null"]}, "5"),
        ("12345678901234567890123", {"type": "integer"}, "12345678901234567890123"),
        ("0.123456789012345678", {}, "0.123456789012345678"),
        ("true", {"type": "boolean"}, "true"),
        ("null", {}, ""),
    ],
)
def test_numbers_keep_the_digits_that_the_model_wrote(written: str, schema: Any, text: str) -> None:
    arguments, _ = read_arguments(f'{{"x": {written}}}')
    assert arguments is not None
    assert sent("header", "simple", False, arguments["x"], schema) == text
    assert sent("query", "form", True, arguments["x"], schema) == (f"color={text}" if text else "")
    if text:
        values, items = [arguments["x"], "a"], {"items": {"anyOf": [schema, {"const": "a"}]}}
        assert written[0] == "[" or sent("query", "form", False, values, items) == f"color={text},a"


ODD = "a/b?c=d,e@f:g&h+i#j[k] %2F 100% %zz"
PASSED = "a/b?c=d,e@f:g%26h%2Bi%23j%5Bk%5D%20%2F%20100%25%20%25zz"


@pytest.mark.parametrize(
    ("style", "explode", "value", "text"),
    [
        ("form", True, ODD, f"color={PASSED}"),
        ("form", True, ["a/b", "c,d"], "color=a/b&color=c,d"),
        ("form", False, ["a/b", "c:d"], "color=a/b,c:d"),
        ("form", True, {"k/=": "a/b"}, "k%2F%3D=a/b"),
        ("deepObject", True, {"k/": "a/b"}, "color[k%2F]=a/b"),
    ],
)
def test_reserved_characters_are_sent_as_they_are_if_the_document_says_so(
    style: str, explode: bool, value: Any, text: str
) -> None:
    assert sent("query", style, explode, value, allowReserved=True) == text
    assert sent("query", style, explode, value) != text
    if style == "form":
        assert "a/b" not in sent("cookie", style, explode, value, allowReserved=True)


def test_reserved_characters_never_join_two_items() -> None:
    with pytest.raises(ValueError, match="separates the items here"):
        sent("query", "form", False, ["a,b", "c"], allowReserved=True)


def test_fields_of_a_form_have_their_own_styles() -> None:
    content: Any = {
        "schema": {"type": "object", "properties": {name: {} for name in "abcde"}},
        "encoding": {
            "a": {"explode": False},
            "b": {"style": "deepObject"},
            "c": {"contentType": "text/plain"},
            "e": {"allowReserved": True},
        },
    }
    operation: Any = {"requestBody": {"content": {"application/x-www-form-urlencoded": content}}, "responses": {}}
    [read] = OpenApi({"openapi": "3.1.0", "info": {}, "paths": {"/": {"post": operation}}}).operations
    arguments = {"a": ["x", "y,z"], "b": {"k": "v w"}, "c": [1, None, 2], "d": {"n": 1}, "e": "5/0"}
    assert encode(read, arguments).content == b"a=x,y%2Cz&b[k]=v%20w&c=1&c=2&d=%7B%22n%22%3A%201%7D&e=5/0"
