"""Cassettes: what a real server answered is replayed when it is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from hypothesis import given
from hypothesis import strategies as st

from contrib.apis.http.cassette import Cassette, NotRecorded
from contrib.apis.http.client import ApiClient, ApiResponse, ApiSettings
from contrib.apis.http.credentials import REDACTED
from contrib.apis.tests.http.test_apis_http import Server, app_of
from forge_env.core.errors import ServiceError, UserError
from tests.envs.serving import serve

MANY_LINES = "one line\nanother\u2028and one more\n"


def app() -> FastAPI:
    """The app of test_apis_http.py, and what only a cassette asks for."""
    app = app_of(server := Server())

    @app.get("/count")
    async def count() -> Response:
        return JSONResponse({"count": server.counts["/count"]})

    @app.post("/upper")
    async def upper(request: Request) -> Response:
        return PlainTextResponse((await request.body()).decode().upper() + MANY_LINES)

    @app.get("/bytes")
    async def bytes_() -> Response:
        return Response(bytes(range(256)), media_type="image/png")

    @app.get("/with-secret")
    async def with_secret(request: Request) -> Response:
        token = request.headers["authorization"].removeprefix("Bearer ")
        return Response(status_code=302, headers={"Location": f"/bytes?token={token}"})

    return app


@pytest.fixture
def url() -> Iterator[str]:
    with serve(app()) as url:
        yield url


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    return tmp_path / "tape.jsonl"


def settings(tape: Path, mode: str, **more: float) -> ApiSettings:
    values = {"backoff_seconds": 0.001, "max_bytes": 5000, **more}
    return ApiSettings(cassette=str(tape), cassette_mode=mode, **values)  # type: ignore[arg-type]


async def visit(api: ApiClient) -> list[ApiResponse]:
    token = api.with_headers({"Authorization": "Bearer very-secret"})
    return [
        await token.request("GET", "/count"),
        await token.request("GET", "/count"),
        await token.request("GET", "/flaky/503/1"),
        await token.request("POST", "/upper", content=b"a"),
        await token.request("POST", "/upper", content=b"b"),
        await token.request("GET", "/bytes"),
        await token.request("GET", "/echo"),
        await token.request("GET", "/to?url=/bytes"),
        await token.request("GET", "/endless"),
        await token.request("GET", "/with-secret"),
    ]


async def test_what_was_recorded_is_replayed_without_the_server_and_without_secrets(tape: Path) -> None:
    with serve(app()) as url:
        async with ApiClient(settings(tape, "record")) as client:
            recorded = await visit(client.at(url))
    text = tape.read_text()
    assert "very-secret" not in text and REDACTED in text
    first = json.loads(text.splitlines()[0])
    place = (first["method"], first["url"], first["status"], first["body"])
    assert place == ("GET", f"{url}/count", 200, '{"count":1}')
    tape.write_bytes(b"\xef\xbb\xbf" + tape.read_bytes())  # a byte order mark does no harm
    async with ApiClient(settings(tape, "replay")) as client:
        assert await visit(client.at(url)) == recorded
        assert await visit(client.at(url)) == recorded, "another client begins at the first answer"
    assert [answer.text for answer in recorded[:3]] == ['{"count":1}', '{"count":2}', '{"attempts":2}']
    assert [answer.text for answer in recorded[3:5]] == ["A" + MANY_LINES, "B" + MANY_LINES]
    assert [recorded[i].body for i in (5, 7, 9)] == [bytes(range(256))] * 3 and recorded[8].truncated


async def test_auto_records_what_is_missing_and_nothing_else(url: str, tape: Path) -> None:
    for path, lines in (("/count", 1), ("/count", 1), ("/bytes", 2), ("/count", 2)):
        async with ApiClient(settings(tape, "auto")) as client:
            response = await client.at(url).request("GET", path)
        assert len(tape.read_text().splitlines()) == lines
    assert response.text == '{"count":1}'


async def test_record_begins_anew(url: str, tape: Path) -> None:
    for count in (1, 2):
        async with ApiClient(settings(tape, "record")) as client:
            await client.at(url).request("GET", "/count")
        assert json.loads(tape.read_text())["body"] == f'{{"count":{count}}}'


async def test_a_request_that_is_not_recorded_says_what_is(url: str, tape: Path) -> None:
    async with ApiClient(settings(tape, "record")) as client:
        await client.at(url).request("GET", "/count")
    known = f"no answer to GET {url}/counts. The nearest that is recorded: GET {url}/count"
    async with ApiClient(settings(tape, "replay")) as client:
        with pytest.raises(NotRecorded, match=known):
            await client.at(url).request("GET", "/counts")


async def test_a_body_that_broke_off_is_not_recorded(url: str, tape: Path) -> None:
    async with ApiClient(settings(tape, "record", attempt_seconds=0.3, retries=0)) as client:
        with pytest.raises(ServiceError, match="took longer"):
            await client.at(url).request("GET", "/drip")
    assert tape.read_text() == ""


async def test_off_touches_no_file(url: str, tape: Path) -> None:
    async with ApiClient(settings(tape, "off")) as client:
        await client.at(url).request("GET", "/count")
    assert not tape.exists()


@pytest.mark.parametrize(
    ("mode", "path", "problem"),
    [
        ("rplay", "tape", "the cassette mode 'rplay' is unknown. Did you mean replay?"),
        ("replay", "tape", "cannot be read: .*No such file"),
        ("record", "no/such/folder/tape", "cannot be written: No such file"),
        ("auto", "", "needs a file"),
    ],
)
async def test_a_cassette_that_is_none_is_said(tmp_path: Path, mode: str, path: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        async with ApiClient(settings(tmp_path / path, mode) if path else ApiSettings(cassette_mode=mode)):
            pass


KEYS = ["method", "url", "request_sha256", "status", "headers", "body", "is_base64", "x"]
VALUES = st.none() | st.integers() | st.text(max_size=5) | st.booleans() | st.lists(st.text(max_size=5), max_size=2)


@given(st.text(max_size=20) | st.dictionaries(st.sampled_from(KEYS), VALUES).map(json.dumps))
def test_a_line_that_is_no_recording_is_said(tmp_path_factory: pytest.TempPathFactory, line: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    path.write_text(line, encoding="utf-8", errors="replace")
    try:
        cassette = Cassette(path, "replay")
    except UserError as error:
        assert "is no recording" in str(error) or "cannot be read" in str(error)
    else:
        assert all(answer.content is not None for answers in cassette._responses.values() for answer in answers)
