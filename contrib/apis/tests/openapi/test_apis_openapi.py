"""Tools from OpenAPI documents: a real service, every place of a parameter, odd documents and broken ones."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from contrib.apis.http.client import ApiClient, ApiSettings
from contrib.apis.json_schema.validation import SchemaArguments
from contrib.apis.openapi.documents import parse
from contrib.apis.openapi.tools import OpenApi
from contrib.apis.sources import open_sources, parse_auth
from contrib.apis.tests.openapi_tools import openapi_tools
from forge_env.core.errors import UserError
from forge_env.core.tools import Tool
from forge_env.core.types import ToolCall
from forge_env.tool_env.tool_env import Toolbox
from tests.envs.serving import serve

TEXT, INTEGER = {"type": "string"}, {"type": "integer"}


def parameter(name: str, place: str, schema: Any = TEXT, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "schema": schema, **({"required": True} if place == "path" else {}), **more}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def json_body(schema: Any, **more: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}, **more}


def document(paths: dict[str, Any], version: str = "3.1.0", **components: Any) -> dict[str, Any]:
    return {"openapi": version, "info": {"title": "t", "version": "1"}, "paths": paths, "components": components}


def operation(*parameters: Any, **more: Any) -> dict[str, Any]:
    return {"operationId": "do", "parameters": list(parameters), **more}


def schema_of(node: Any, version: str = "3.1.0", **components: Any) -> dict[str, Any]:
    """The schema of the tool of one operation."""
    return OpenApi(document({"/x": {"post": node}}, version, **components)).operations[0].schema


# A service that says what it was sent.


NUMBERS = '{"b": [1.10, 1e400, -0, -0.0, 1E5, 0.123456789012345678], "a": "\\u00e9 1.10", "a": 12345678901234567890}'
SHOWN = '{"b":[1.10,1e400,-0,-0.0,1E5,0.123456789012345678],"a":"é 1.10","a":12345678901234567890}'


class Service:
    def __init__(self) -> None:
        self.url = ""
        self.failures = 0
        self.keys: list[str | None] = []
        app = self.app = FastAPI()

        @app.api_route("/echo/{rest:path}", methods=["GET", "POST"], include_in_schema=False)
        async def echo(request: Request) -> Response:
            self.keys.append(request.headers.get("idempotency-key"))
            if self.failures:
                self.failures -= 1
                return PlainTextResponse("down", 503)
            shown = {n: v for n, v in request.headers.items() if n.startswith("x-") or n == "authorization"}
            sent = {"path": request.scope["raw_path"].decode(), "query": request.url.query, "headers": shown}
            body = {"type": request.headers.get("content-type"), "body": (await request.body()).decode()}
            return JSONResponse({**sent, **body, "cookies": request.cookies})

        @app.get("/fail/{status}")
        async def fail(status: int, request: Request) -> Response:
            return JSONResponse({"detail": f"said {request.headers.get('authorization', 'nothing')}"}, status)

        @app.get("/plain/{kind}")
        async def plain(kind: str) -> Response:
            bodies = {
                "text": PlainTextResponse("hello"),
                "image": Response(b"\x89PNG\0", media_type="image/png"),
                "empty": Response(status_code=204),
                "moved": Response(status_code=302, headers={"Location": "http://example.com/"}),
                "page": Response("<h1>No</h1>\n  such page", 404, media_type="text/html"),
                "numbers": Response(NUMBERS, media_type="application/json"),
                "limit": Response('{"detail": {"limit": 1.10}}', 422, media_type="application/json"),
                "mark": Response("\ufeff" + NUMBERS + "\r\n\0\0", media_type="application/json"),
                "utf-16": Response(NUMBERS.encode("utf-16"), media_type="application/json; charset=utf-16"),
                "utf-16-le": Response(NUMBERS.encode("utf-16-le"), media_type="application/json"),
            }
            return bodies[kind]


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    service = Service()
    with serve(service.app) as url:
        service.url = url
        yield service


@pytest.fixture
async def client() -> AsyncIterator[ApiClient]:
    async with ApiClient(ApiSettings(backoff_seconds=0.001, max_bytes=20_000)) as client:
        yield client


async def ask(tools: list[Tool], tool: str, /, **arguments: Any) -> str:
    messages, _ = await Toolbox({t.name: t for t in tools}).answer([ToolCall(id="1", name=tool, arguments=arguments)])
    return str(messages[0]["content"])


async def echo(
    client: ApiClient, service: Service, node: Any, method: str = "get", path: str = "/echo/x", **arguments: Any
) -> Any:
    """Call the tool of one operation; returns what the service was sent."""
    tools = await openapi_tools(document({path: {method: node}}), client=client, base_url=service.url)
    answer = await ask(tools, "do", **arguments)
    assert answer.startswith("{"), answer
    return json.loads(answer)


LIST = {"type": "array", "items": TEXT}
OBJECT = {"type": "object"}


async def test_paths_and_queries(client: ApiClient, running: Service) -> None:
    """The ways of the wire; every style of a parameter is in test_encoding.py."""
    node = operation(parameter("id", "path"), parameter("q", "query", LIST))
    for value, path in (("a/b?c#d%e é", "a%2Fb%3Fc%23d%25e%20%C3%A9"), ("..%2f", "..%252f")):
        sent = await echo(client, running, node, path="/echo/{id}/end", id=value, q=["a b&c=d", "e"])
        assert (sent["path"], sent["query"]) == (f"/echo/{path}/end", "q=a%20b%26c%3Dd&q=e")
    tools = await openapi_tools(document({"/echo/{id}": {"get": node}}), client=client, base_url=running.url)
    for value in ("", ".", ".."):
        assert await ask(tools, "do", id=value) == f"Error: id: {value!r} cannot stand in the path of a URL"
    assert (await ask(tools, "do", id="\ud800")).startswith("Error: ")


async def test_headers_cookies_and_json_in_a_parameter(client: ApiClient, running: Service) -> None:
    node = operation(
        parameter("X-One", "header", INTEGER),
        parameter("sid", "cookie"),
        {"name": "filter", "in": "query", "content": {"application/json": {"schema": OBJECT}}},
    )
    sent = await echo(client, running, node, sid="a b", filter={"a": [1]}, **{"X-One": "5"})
    assert (sent["headers"], sent["cookies"]) == ({"x-one": "5"}, {"sid": "a%20b"})
    assert sent["query"] == "filter=%7B%22a%22%3A%20%5B1%5D%7D"
    tools = await openapi_tools(
        document({"/echo/x": {"get": operation(parameter("X-One", "header"))}}), client=client, base_url=running.url
    )
    assert "printable ASCII" in await ask(tools, "do", **{"X-One": "a\r\nX-Evil: 1"})
    assert json.loads(await ask(tools, "do", **{"X-One": " a b "}))["headers"] == {"x-one": "a b"}


async def test_bodies(client: ApiClient, running: Service) -> None:
    async def sent(body: Any, /, **arguments: Any) -> tuple[str, str]:
        answer = await echo(client, running, operation(requestBody=body), "post", **arguments)
        return answer["body"], answer["type"]

    item = {"type": "object", "properties": {"name": TEXT, "count": INTEGER}, "required": ["name"]}
    body, kind = await sent(json_body(item, required=True), name="é", count="3")
    assert (json.loads(body), kind) == ({"name": "é", "count": 3}, "application/json")
    form = {"content": {"application/x-www-form-urlencoded": {"schema": item}}, "required": True}
    assert await sent(form, name="a&b", count=1) == ("name=a%26b&count=1", "application/x-www-form-urlencoded")
    array = json_body({"type": "array", "items": INTEGER}, required=True)
    assert json.loads((await sent(array, body="[1, 2]"))[0]) == [1, 2]
    assert (await sent({"content": {"text/plain": {"schema": TEXT}}}, body="so"))[0] == "so"
    assert (await sent(json_body({"type": "object", "properties": {"a": TEXT}})))[0] == ""


async def test_an_idempotency_key_is_no_argument_and_makes_a_post_safe_to_repeat(
    client: ApiClient, running: Service
) -> None:
    node = operation(parameter("Idempotency-Key", "header", required=True))
    api = OpenApi(document({"/echo/x": {"post": node}}), base_url=running.url)
    tools = api.tools(api.connect(client))
    assert tools[0].parameters["properties"] == {}
    running.keys.clear()
    running.failures = 1
    assert (await ask(tools, "do")).startswith("{")
    await ask(tools, "do")
    assert running.keys[0] == running.keys[1] != running.keys[2]


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/fail/404", "Error: 404 Not Found: said nothing"),
        ("/plain/page", "Error: 404 Not Found: <h1>No</h1> such page"),
        ("/plain/text", "hello"),
        ("/plain/numbers", SHOWN),
        ("/plain/mark", SHOWN),
        ("/plain/utf-16", SHOWN),
        ("/plain/utf-16-le", SHOWN),
        ("/plain/limit", 'Error: 422 Unprocessable Entity: {"limit":1.10}'),
        ("/plain/image", "[image/png, 5 bytes]"),
        ("/plain/empty", "OK (204 No Content, no content)"),
        ("/plain/moved", "Error: 302 Found: the service redirects to http://example.com/, which is not followed."),
    ],
)
async def test_answers(client: ApiClient, running: Service, path: str, answer: str) -> None:
    tools = await openapi_tools(document({path: {"get": operation()}}), client=client, base_url=running.url)
    assert await ask(tools, "do") == answer


# Credentials.


async def test_security_schemes_are_filled_from_the_environment_and_are_no_arguments(
    client: ApiClient, running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "key-value")
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "query": {"type": "apiKey", "in": "query", "name": "key"},
        "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    }
    node = operation(
        parameter("X-Key", "header", required=True),
        parameter("key", "query", required=True),
        parameter("Authorization", "header"),
        parameter("q", "query"),
    )
    api = OpenApi(document({"/echo/x": {"get": node}}, securitySchemes=schemes), base_url=running.url)
    tools = api.tools(api.connect(client, headers_from_env=dict.fromkeys(schemes, "THE_KEY")))
    assert tools[0].parameters == {"type": "object", "properties": {"q": TEXT}}
    sent = json.loads(await ask(tools, "do", q="1"))
    assert sent["headers"] == {"x-key": "[redacted]", "authorization": "Bearer [redacted]"}
    assert (sent["query"], sent["cookies"]) == ("q=1&key=[redacted]", {"sid": "[redacted]"})
    failed = api.tools(api.connect(client, headers_from_env={"bearer": "THE_KEY"}))
    assert "key-value" not in str(failed)


async def test_each_episode_has_its_own_headers(client: ApiClient, running: Service) -> None:
    api = OpenApi(document({"/fail/403": {"get": operation()}}), base_url=running.url)
    service = api.connect(client)
    for token in ("first-token", "second-token"):
        tools = api.tools(service.with_headers({"Authorization": f"Bearer {token}"}))
        assert await ask(tools, "do") == "Error: 403 Forbidden: said [redacted]"


# Schemas.


def test_a_body_stands_beside_the_parameters_unless_that_is_unclear() -> None:
    item = {"type": "object", "properties": {"id": TEXT, "note": TEXT}, "required": ["note"]}
    flat = schema_of(operation(requestBody=json_body(item, required=True)))
    assert flat == {"type": "object", "properties": {"id": TEXT, "note": TEXT}, "required": ["note"]}
    collides = schema_of(operation(parameter("id", "query"), requestBody=json_body(item, required=True)))
    assert collides["properties"].keys() == {"id", "body"}
    open_ended = {**item, "additionalProperties": True}
    assert schema_of(operation(requestBody=json_body(open_ended)))["properties"] == {"body": open_ended}
    assert schema_of(operation(requestBody=json_body(item)))["properties"] == {"body": item}, "optional as a whole"


def test_references_are_resolved_and_cycles_are_no_matter() -> None:
    node = {"type": "object", "properties": {"value": INTEGER, "next": ref("Node")}}
    schema = schema_of(
        operation({"$ref": "#/components/parameters/Q"}, requestBody={"$ref": "#/components/requestBodies/B"}),
        schemas={"Node": node, "Unused": TEXT},
        parameters={"Q": parameter("q", "query")},
        requestBodies={"B": json_body(ref("Node"), required=True)},
    )
    assert schema["properties"].keys() == {"q", "value", "next"}
    assert schema["properties"]["next"] == {"$ref": "#/$defs/Node"} and schema["$defs"].keys() == {"Node"}
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"next": {"next": {"value": 1}}})
    assert not validator.is_valid({"next": {"next": {"value": "one"}}})


def test_two_schemas_of_one_name_are_told_apart() -> None:
    first, second = ref("X"), {"$ref": "#/components/other/X"}
    schema = schema_of(
        operation(parameter("a", "query", first), parameter("b", "query", second)),
        schemas={"X": TEXT},
        other={"X": INTEGER},
    )
    assert Draft202012Validator(schema).is_valid({"a": "1", "b": 1})
    assert not Draft202012Validator(schema).is_valid({"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("old", "good", "bad"),
    [
        ({"type": "string", "nullable": True}, [None, "a"], [1]),
        ({"enum": ["a"], "nullable": True}, [None, "a"], ["b"]),
        ({"allOf": [{"type": "integer"}], "nullable": True}, [None, 1], ["b"]),
        (ref("N") | {"nullable": True}, [None, 1], ["b"]),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, [2], [1]),
        ({"type": "integer", "maximum": 1, "exclusiveMaximum": False}, [1], [2]),
        ({"type": "object", "properties": {"a": {"type": "string", "readOnly": True}}, "required": ["a"]}, [{}], [1]),
    ],
)
def test_what_3_0_writes_otherwise(old: Any, good: list[Any], bad: list[Any]) -> None:
    schema = schema_of(operation(parameter("q", "query", old)), "3.0.3", schemas={"N": INTEGER})
    Draft202012Validator.check_schema(schema)
    assert all(Draft202012Validator(schema).is_valid({"q": value}) for value in good)
    assert not any(Draft202012Validator(schema).is_valid({"q": value}) for value in bad)


def closed(properties: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


PET = {"type": "object", "properties": {"kind": TEXT, "id": {**TEXT, "readOnly": True}}, "required": ["kind", "id"]}
CAT, DOG = closed({"kind": TEXT, "lives": INTEGER}), closed({"kind": TEXT, "tricks": INTEGER})
CAT_OR_DOG = {"oneOf": [ref("Cat"), ref("Dog")]}
BY_KIND = {"propertyName": "kind", "mapping": {"cat": "#/components/schemas/Cat", "dog": "Dog"}}
BASE = closed({"id": INTEGER}, required=["id"])
TREE = {"oneOf": [ref("Leaf"), ref("Fork")], **PET}
OWN = {"unevaluatedProperties": False, "properties": {"n": TEXT}}
A_OR_B = [closed({"a": TEXT}), closed({"b": TEXT})]
CATS_AND_DOGS = [{"kind": "cat", "lives": 9}, {"kind": "Dog"}, {"kind": "dog", "tricks": 1}, {}]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"oneOf": [INTEGER, {"type": "number"}]}, [1, 1.5], ["a"]),
        (CAT_OR_DOG, [{"kind": "cat"}, {"lives": 9}], [{"x": 1}]),
        (CAT_OR_DOG | {"discriminator": BY_KIND}, CATS_AND_DOGS, [{"kind": "fish"}, {"kind": "cat", "tricks": 1}]),
        ({"oneOf": [INTEGER], "anyOf": [{"minimum": 3}, {"maximum": 1}]}, [0, 4], [2, "a"]),
        ({"allOf": [ref("Base"), closed({"n": TEXT})]}, [{"id": 1, "n": "a"}, {"id": 1}], [{"n": "a"}, {"id": "a"}]),
        ({"allOf": [ref("Base"), closed({"name": TEXT})]}, [{"id": 1}], [{"id": 1, "other": 2}]),
        (closed({"n": TEXT}, allOf=[ref("Pet")]), [{"kind": "k", "n": "a"}], [{"kind": "k", "x": 1}]),
        ({"allOf": [ref("Base"), {"oneOf": A_OR_B}]}, [{"id": 1, "b": "x"}], [{"id": 1, "c": "x"}, {"a": "x"}]),
        (closed({"id": INTEGER}, anyOf=A_OR_B), [{"id": 1, "a": "x"}], [{"c": 1}]),
        ({"allOf": [{"allOf": [ref("Base")]}, OWN]}, [{"id": 1, "n": "x"}], [{"id": 1, "m": "x"}]),
        ({"allOf": [ref("Pet"), {"required": ["id", "kind"]}]}, [{"kind": "k"}], [{}]),
        (ref("Tree"), [{"kind": "k", "size": 1}, {"kind": "k"}], [{"size": 1}, {"kind": "k", "size": "x"}]),
        (ref("Leaf"), [{"kind": "k", "size": 1}], [{"size": 1}, {"kind": "k", "size": "x"}]),
    ],
)
def test_composed_schemas_mean_what_documents_mean_by_them(schema: Any, good: list[Any], bad: list[Any]) -> None:
    leaf = {"allOf": [ref("Tree"), {"properties": {"size": INTEGER}}]}
    schemas = {"Pet": PET, "Cat": CAT, "Dog": DOG, "Base": BASE, "Tree": TREE, "Leaf": leaf, "Fork": leaf}
    body = json_body({"type": "array", "items": schema})
    converted = schema_of(operation(requestBody=body), schemas=schemas)
    Draft202012Validator.check_schema(converted)
    validator = Draft202012Validator(converted)
    assert [value for value in good if not validator.is_valid({"body": [value]})] == []
    assert [value for value in bad if validator.is_valid({"body": [value]})] == []


@pytest.mark.parametrize("kind", [TEXT, {"const": "dog"}])
def test_a_mistake_is_of_the_alternative_that_was_meant(kind: Any) -> None:
    dog, cat = closed({"kind": kind, "n": TEXT}, required=["n"]), closed({"kind": {"const": "cat"}}, required=["kind"])
    schema = CAT_OR_DOG | {"discriminator": BY_KIND}
    converted = schema_of(operation(parameter("q", "query", schema)), schemas={"Cat": cat, "Dog": dog})
    with pytest.raises(ValueError, match="^q: 'n' is a required property"):
        SchemaArguments(converted, where="the tool")({"q": {"kind": "dog"}})


def test_what_stands_beside_a_reference_counts_from_3_1_on() -> None:
    beside = {**ref("N"), "description": "how many", "maximum": 3, "type": "string"}
    for version, is_refused in (("3.0.3", False), ("3.1.0", True)):
        schema = schema_of(operation(parameter("q", "query", beside)), version, schemas={"N": INTEGER})
        assert schema["properties"]["q"]["description"] == "how many"
        assert Draft202012Validator(schema).is_valid({"q": 4}) != is_refused


def test_parts_without_end_are_refused_in_one_sentence() -> None:
    twice = {f"S{i}": {"allOf": [ref(f"S{i + 1}")] * 2} for i in range(20)}
    with pytest.raises(UserError, match="has a schema of more than 20000 parts: exclude it"):
        schema_of(operation(parameter("q", "query", ref("S0"))), schemas={**twice, "S20": INTEGER})


def arguments_of(schema: Any) -> Any:
    node = operation(parameter("q", "query", schema, required=True))
    api = OpenApi(document({"/x": {"get": node}}), base_url="http://a")
    return api.tools(ApiClient().at("http://a"))[0].arguments


@pytest.mark.parametrize(
    ("schema", "given_", "taken"),
    [
        (INTEGER, "3", 3),
        ({"type": "number"}, " 3.5 ", 3.5),
        (TEXT, 3, "3"),
        ({"type": "boolean"}, "True", True),
        (LIST, '["a", 1]', ["a", "1"]),
        ({"type": "object", "properties": {"a": INTEGER}}, '{"a": "1"}', {"a": 1}),
        ({"anyOf": [INTEGER, {"type": "null"}]}, "3", 3),
        ({"type": ["integer", "null"]}, "null", None),
        ({"anyOf": [{"$ref": "#/paths/~1x/get/parameters/0/schema/anyOf/1"}, INTEGER]}, "7", 7),
    ],
)
def test_what_is_plainly_meant_is_put_right(schema: Any, given_: Any, taken: Any) -> None:
    before = copy.deepcopy(given_)
    assert arguments_of(schema)({"q": given_}) == {"q": taken}
    assert given_ == before


@pytest.mark.parametrize(
    ("schema", "given_", "problem"),
    [
        (INTEGER, {"q": "three"}, "q: 'three' is not of type 'integer'."),
        (INTEGER, {"q": True}, "q: True is not of type 'integer'."),
        (INTEGER, {}, "'q' is a required property."),
        (INTEGER, {"q": 1, "r": 2}, "Additional properties are not allowed ('r' was unexpected)."),
        ({"type": "string", "pattern": "^a$"}, {"q": "b"}, "q: 'b' does not match '^a$'."),
        (LIST, {"q": ["a", {}]}, "q.1: {} is not of type 'string'."),
        ({"enum": ["a"] * 500}, {"q": "x" * 5000}, "..."),
    ],
)
def test_errors_are_short_and_to_the_point(schema: Any, given_: Any, problem: str) -> None:
    with pytest.raises(ValueError) as error:
        arguments_of(schema)(given_)
    assert problem in str(error.value) and len(str(error.value)) < 300


def test_a_pattern_that_cannot_be_matched_in_linear_time_lets_everything_pass() -> None:
    assert arguments_of({"type": "string", "pattern": r"^(?!a)b(c)\1$"})({"q": "x"}) == {"q": "x"}
    assert arguments_of({"type": "string", "pattern": r"^\p{L}+$"})({"q": "x"}) == {"q": "x"}


def test_names_by_a_pattern_have_its_schema_and_others_that_of_the_rest() -> None:
    named = {"patternProperties": {"^n_": {"type": "integer"}}}
    check = SchemaArguments({"type": "object", **named, "additionalProperties": False}, where="the tool")
    assert check({"n_a": "1"}) == {"n_a": 1}
    for wrong, problem in (({"n_a": "x"}, "n_a: 'x' is not"), ({"m": 1, "o": 2}, "('m', 'o' were unexpected)")):
        with pytest.raises(ValueError, match=re.escape(problem)):
            check(wrong)
    rest = SchemaArguments({"type": "object", **named, "additionalProperties": {"type": "string"}}, where="the tool")
    assert rest({"n_a": 1, "m": 2}) == {"n_a": 1, "m": "2"}
    unread = {"type": "object", "patternProperties": {"^(?!a)": {"type": "integer"}}, "additionalProperties": False}
    assert SchemaArguments(unread, where="the tool")({"b": "x"}) == {"b": "x"}


# Names and the choice of operations.


def test_names_are_those_that_models_take_and_no_two_are_the_same() -> None:
    ids = ["get user/by.id", "get_user_by_id", "é!!", "", "x" * 100, "x" * 100, 5, None]
    paths = {f"/p{i}": {"get": {"operationId": name}} for i, name in enumerate(ids)}
    names = [operation.name for operation in OpenApi(document(paths)).operations]
    assert names[:2] == ["get_user_by_id", "get_user_by_id_2"] and names[3] == "get_p3"
    assert len(set(names)) == len(names)
    assert all(0 < len(name) <= 64 and set(name) < set("abcdefghijklmnopqrstuvwxyz0123456789_-") for name in names)


def test_operations_are_chosen_by_name_and_others_may_be_anything() -> None:
    paths = {"/a": {"get": {"operationId": "get_a"}}, "/b": {"get": {"operationId": "get_b", "parameters": "broken"}}}
    assert [o.name for o in OpenApi(document(paths), include=["*_a"]).operations] == ["get_a"]
    assert [o.name for o in OpenApi(document(paths), exclude=["get_b"]).operations] == ["get_a"]
    with pytest.raises(UserError, match="GET /b has parameters that are no list"):
        OpenApi(document(paths))
    with pytest.raises(UserError, match="no operation 'get_aa'. Did you mean get_a?"):
        OpenApi(document(paths), include=["get_aa"])


def test_reading_tools_run_beside_each_other() -> None:
    api = OpenApi(document({"/a": {"get": {}, "post": {}}}), base_url="http://a")
    options = [tool.options for tool in api.tools(ApiClient().at("http://a"))]
    assert [(o.parallel, o.idempotent) for o in options] == [(False, False), (True, True)][::-1]


# Documents.


async def test_a_document_is_read_from_a_file_of_yaml(client: ApiClient, tmp_path: Path) -> None:
    data = document({"/x": {"get": {"operationId": "x", "responses": {200: {"description": "d"}}}}})
    (path := tmp_path / "api.yaml").write_text(yaml.safe_dump(data))
    tools = await openapi_tools(str(path), client=client, base_url="http://127.0.0.1:1")
    assert [tool.name for tool in tools] == ["x"]


def test_scalars_of_a_yaml_document_are_those_of_yaml_1_2() -> None:
    texts = ["NO", "on", "yes", "Off", "y", "1:30", "12:30:45", "012", "1_000", "2024-03-01", "0b1", "+.5.", "nan", "="]
    words = {"true": True, "FALSE": False, "~": None, "Null": None}
    others = words | {"12": 12, "-3": -3, "0o17": 15, "0x1F": 31, "1e3": 1000}
    lines = [f"  - {text}" for text in (*texts, *others, "-2.5", "'12'")]
    data = parse("\n".join(["base: &b {no: yes}", "list:", *lines, "all: {<<: *b, on: 1}"]), "the document")
    assert data["list"] == [*texts, *others.values(), -2.5, "12"]
    assert data["all"] == {"no": "yes", "on": 1}


async def test_a_document_is_read_from_its_service(client: ApiClient, running: Service) -> None:
    api = await OpenApi.load(f"{running.url}/openapi.json", client=client, include=["fail_*"])
    assert api.base_url.rstrip("/") == running.url
    answer = await ask(api.tools(api.connect(client)), api.operations[0].name, status="404")
    assert answer == "Error: 404 Not Found: said nothing"


async def test_a_fetched_document_does_not_choose_who_gets_the_credentials(client: ApiClient) -> None:
    app = FastAPI(servers=[{"url": "https://elsewhere.example.com"}])
    with serve(app) as url:
        api = await OpenApi.load(f"{url}/openapi.json", client=client)
        problem = "of another host than its server https://elsewhere.example.com: give base_url"
        with pytest.raises(UserError, match=problem):
            api.connect(client)
        named = await OpenApi.load(f"{url}/openapi.json", client=client, base_url="https://elsewhere.example.com")
        assert named.connect(client).base_url == "https://elsewhere.example.com"


def test_the_server_of_a_document_may_have_variables() -> None:
    server = {"url": "https://{region}.example.com/v1", "variables": {"region": {"default": "eu"}}}
    assert OpenApi({**document({}), "servers": [server]}).base_url == "https://eu.example.com/v1"
    for servers in ([], [{"url": "https://{region}.example.com"}], [{"url": "//example.com"}]):
        with pytest.raises(UserError, match="does not say where its service is"):
            _ = OpenApi({**document({}), "servers": servers}).base_url


@pytest.mark.parametrize("is_at_path", [False, True])
def test_an_operation_with_a_server_of_its_own_is_not_sent_to_another(is_at_path: bool) -> None:
    own = {"servers": [{"url": "https://files.example.com/v2/"}]}
    item = {"get": operation(), **own} if is_at_path else {"get": {**operation(), **own}}
    both = {**document({"/x": item, "/y": {"get": operation()}}), "servers": [{"url": "https://example.com"}]}
    with pytest.raises(UserError, match="GET /x has a server of its own, 'https://files.example.com/v2/'"):
        OpenApi(both)
    assert [tool.path for tool in OpenApi(both, exclude=["do"]).operations] == ["/y"]
    assert OpenApi(both, include=["do"], base_url="https://files.example.com/v2").operations
    assert OpenApi({**both, **own}).operations  # it is the document's


def in_body(schema: Any) -> Any:
    return document({"/x": {"post": operation(requestBody=json_body(schema))}})


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"swagger": "2.0", "paths": {}}, "Swagger 2.0: convert it first"),
        ({"openapi": "4.0"}, "is no OpenAPI 3.0 or 3.1 document"),
        ([], "is no object but list"),
        (document({"x": {}}), "'x' .* does not begin with /"),
        (in_body({"$ref": "#/nowhere"}), "'#/nowhere', which is not"),
        (in_body({"$ref": "other.yaml#/X"}), "'other.yaml#/X', another document: bundle them"),
        (in_body({"type": "file"}), "POST /x has a JSON schema that is none: 'file' is not valid"),
        (in_body(7), "POST /x has a schema that is neither an object nor true or false"),
        (document({"/{id}": {"get": operation()}}), "GET /{id} has no parameter for id in its path"),
        (document({"/x": {"get": operation(parameter("a", "body"))}}), "in no place that there is: 'body'"),
        (document({"/x": {"post": {"requestBody": {"content": {"image/png": {}}}}}}), "takes image/png; JSON, forms"),
        (document({"/x": {"$ref": "#/paths/~1x"}}), "refers to itself"),
    ],
)
def test_a_broken_document_is_one_sentence(broken: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as error:
        OpenApi(broken)
    assert "\n" not in str(error.value)


STEPS = zip("abcdefghij", "bcdefghijk", strict=True)
BOMB = "a: &a [x, x]\n" + "".join(f"{c}: &{c} [{', '.join([f'*{p}'] * 8)}]\n" for p, c in STEPS)
TEXTS_WITHOUT_END = ["{" * 5000, "[" * 100_000, "a: " * 100, BOMB]
TEXTS_OF_NOTHING = ["", "- a", "a: [", "\0", "a: 2020-99-99", "? {}\n: 1", "a: !!python/object:os.system {}"]


@pytest.mark.parametrize("text", TEXTS_OF_NOTHING + TEXTS_WITHOUT_END)
def test_a_text_that_is_no_document_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError) as error:
        OpenApi(parse(text, "x.yaml"))
    assert "\n" not in str(error.value)


async def test_a_document_that_cannot_be_had_is_one_sentence(
    client: ApiClient, running: Service, tmp_path: Path
) -> None:
    for source, problem in [
        (str(tmp_path / "none.json"), "No such file"),
        (str(tmp_path), "Is a directory"),
        ("a\0b", "embedded null"),
        (f"{running.url}/nothing", "404 Not Found"),
        ("http://127.0.0.1:1/openapi.json", "ConnectError"),
    ]:
        with pytest.raises(UserError, match=problem):
            await OpenApi.load(source, client=client)


# Whatever the document holds, it is read or refused with a sentence.

WHOLE = document(
    {
        "/a/{id}": {
            "parameters": [parameter("id", "path", INTEGER)],
            "post": operation(
                parameter("q", "query", ref("Node")),
                parameter("h", "header", {"type": "string", "nullable": True}, style="simple", explode=True),
                summary="Do it",
                requestBody=json_body(ref("Node"), required=True),
            ),
        }
    },
    schemas={"Node": closed({"next": ref("Node"), "n": {"type": "integer", "minimum": 1}}, required=["n"])},
    securitySchemes={"key": {"type": "apiKey", "in": "query", "name": "key"}},
)
WORDS = """$ref type properties items required in name schema content nullable anyOf allOf pattern patternProperties
readOnly style default enum minimum get parameters requestBody servers url additionalProperties"""
KEYS = st.sampled_from(WORDS.split())
PATHS = ["#", "#/", "#/components/schemas/Node", "#/components/schemas", "object", "query", "path", "("]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(PATHS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


PLACES = [path for path in places(WHOLE) if path]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(PLACES), KEYS | st.none(), JSON), min_size=1, max_size=4), JSON)
def test_a_fuzzed_document_is_read_or_refused(
    changes: list[tuple[tuple[Any, ...], str | None, Any]], arguments: Any
) -> None:
    data = copy.deepcopy(WHOLE)
    for path, key, value in changes:
        node: Any = data
        try:
            for step in path[:-1]:
                node = node[step]
            if key is not None and isinstance(node[path[-1]], dict):
                node[path[-1]][key] = value
            else:
                node[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    try:
        api = OpenApi(data, base_url="http://127.0.0.1:1")
        tools = api.tools(api.connect(ApiClient()))
    except UserError as error:
        assert str(error) and len(str(error)) < 2000
        return
    for tool in tools:
        json.dumps(tool.spec)
        Draft202012Validator.check_schema(dict(tool.parameters), format_checker=None)
        try:
            tool.arguments(arguments if isinstance(arguments, dict) else {"n": arguments, "id": 1})
        except (ValueError, RecursionError):
            pass


# Sources.


async def test_each_episode_begins_at_the_start_of_a_cassette(tmp_path: Path) -> None:
    app, count = FastAPI(), iter(range(100))

    @app.get("/next", operation_id="next")
    async def next_() -> int:
        return next(count)

    tape = str(tmp_path / "tape.jsonl")
    with serve(app) as url:
        async with open_sources([f"openapi:{url}/openapi.json"], cassette=tape, cassette_mode="record") as sources:
            assert [await ask(list(sources.tools.values()), "next") for _ in range(2)] == ["0", "1"]
    async with open_sources([f"openapi:{url}/openapi.json"], cassette=tape, cassette_mode="replay") as sources:
        for _ in range(2):
            tools = list(sources.episode_tools().values())
            assert [await ask(tools, "next") for _ in range(3)] == ["0", "1", "1"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("no_such_tools", "no_such_tools"),
        ("https://example.com/openapi.json", "is a URL: write openapi:https"),
        ("openapi:", "names no document"),
        ("openapi:no/such.yaml", "cannot be read: No such file"),
        ("mcp:", "the MCP server is empty"),
        ("", "no set of tools ''"),
    ],
)
async def test_a_source_that_is_none_is_one_sentence(source: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as error:
        async with open_sources([source]):
            pass
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "a", "a/b", "/b=C", "a/=C", "a/b=", "https://a.com/b=C"])
def test_a_credential_that_is_not_written_well_is_not_shown(text: str) -> None:
    with pytest.raises(UserError, match="HOST/HEADER=VARIABLE"):
        parse_auth([text])
