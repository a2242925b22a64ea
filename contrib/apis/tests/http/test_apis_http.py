"""ApiClient: real servers that are slow, flaky, endless, that redirect and that give secrets back."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import pickle
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse

from contrib.apis.http.client import ApiClient, ApiSettings
from contrib.apis.http.credentials import REDACTED, Credentials, headers_from_env
from forge_env.core.errors import ServiceError, UserError
from forge_env.utils.deadlines import Deadline
from tests.envs.serving import serve
from tests.helpers.waiting import until

SECRET = "tok/en+with=odd 'signs'"


class Server:
    """What the server has seen, and where it is."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.counts: Counter[str] = Counter()
        self.times: list[float] = []
        self.now = self.most = 0
        self.url = ""


def app_of(server: Server) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def note(request: Request, call_next: Any) -> Response:
        server.seen.append(request)
        server.counts[request.url.path] += 1
        server.times.append(asyncio.get_running_loop().time())
        server.now += 1
        server.most = max(server.most, server.now)
        try:
            return await call_next(request)
        finally:
            server.now -= 1

    @app.api_route("/flaky/{status}/{times}", methods=["GET", "POST", "PUT", "PATCH"])
    async def flaky(request: Request, status: int, times: int) -> Response:
        if server.counts[request.url.path] <= times:
            return PlainTextResponse("not yet", status)
        return JSONResponse({"attempts": server.counts[request.url.path]})

    @app.get("/after/{seconds}")
    async def after(request: Request, seconds: str) -> Response:
        if server.counts[request.url.path] == 1:
            value = seconds if seconds.isdecimal() else format_datetime(datetime.now(UTC) + timedelta(seconds=3600))
            return PlainTextResponse("wait", 503, {"Retry-After": value})
        return PlainTextResponse("now")

    @app.get("/endless")
    async def endless() -> Response:
        async def body() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 1000
                await asyncio.sleep(0)

        return StreamingResponse(body())

    @app.get("/drip")
    async def drip() -> Response:
        async def body() -> AsyncIterator[bytes]:
            while True:
                yield b"x"
                await asyncio.sleep(0.02)

        return StreamingResponse(body())

    @app.get("/gate")
    async def gate() -> Response:
        await asyncio.sleep(0.02)
        return PlainTextResponse("through")

    @app.get("/echo")
    async def echo(request: Request) -> Response:
        return JSONResponse({"headers": dict(request.headers), "query": str(request.url.query)})

    @app.get("/padded/{size}")
    async def padded(request: Request, size: int) -> Response:
        return PlainTextResponse("." * size + request.headers["authorization"])

    @app.get("/to")
    async def to(url: str, status: int = 302) -> Response:
        return RedirectResponse(url, status)

    @app.get("/loop")
    async def loop() -> Response:
        return RedirectResponse("/loop", 302)

    @app.get("/cookie")
    async def cookie() -> Response:
        response = PlainTextResponse("taken")
        response.set_cookie("session", "someone")
        return response

    @app.get("/packed")
    async def packed() -> Response:
        return Response(b"\x1f\x8b bomb", headers={"Content-Encoding": "gzip"})

    return app


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    server = Server()
    with serve(app_of(server)) as url:
        server.url = url
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    """It has seen nothing yet."""
    for seen in (running.seen, running.counts, running.times):
        seen.clear()
    return running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[ApiClient]:
    async with ApiClient(ApiSettings(backoff_seconds=0.001)) as client:
        yield client.at(server.url)


@pytest.mark.parametrize(
    ("method", "path", "how"),
    [
        ("GET", "/flaky/503/2", {}),
        ("PUT", "/flaky/503/2", {}),
        ("POST", "/flaky/502/2", {"headers": {"Idempotency-Key": "k"}}),
        ("POST", "/flaky/502/2", {"idempotent": True}),
        ("POST", "/flaky/429/2", {}),  # too many requests: it was not done
    ],
)
async def test_what_may_be_sent_twice_is_asked_again(client: ApiClient, method: str, path: str, how: Any) -> None:
    response = await client.request(method, path, **how)
    assert json.loads(response.text) == {"attempts": 3}


@pytest.mark.parametrize(
    ("method", "status", "asked"), [("GET", 500, 3), ("POST", 503, 1), ("GET", 429, 3), ("GET", 501, 1)]
)
async def test_the_attempts_are_bounded_and_the_last_is_a_fault(
    client: ApiClient, server: Server, method: str, status: int, asked: int
) -> None:
    path = f"/flaky/{status}/99"
    with pytest.raises(ServiceError, match=f"{method} http://.*{path} was answered with {status} .*attempt {asked}"):
        await client.request(method, path)
    assert server.counts[path] == asked


async def test_the_callers_own_mistakes_are_answers(client: ApiClient, server: Server) -> None:
    response = await client.request("GET", "/flaky/404/99")
    assert (response.status, response.reason, response.text) == (404, "Not Found", "not yet")
    assert server.counts["/flaky/404/99"] == 1


async def test_retry_after_is_waited_for(client: ApiClient, server: Server) -> None:
    assert (await client.request("GET", "/after/1")).text == "now"
    assert server.times[1] - server.times[0] >= 1


async def test_a_retry_after_beyond_the_longest_pause_gives_up_at_once(client: ApiClient, server: Server) -> None:
    with pytest.raises(ServiceError, match="503"):
        await client.request("GET", "/after/an-hour-as-a-date")
    assert server.counts["/after/an-hour-as-a-date"] == 1


async def test_an_endless_body_is_read_up_to_the_cap(server: Server) -> None:
    async with ApiClient(ApiSettings(max_bytes=5000)) as pool:
        response = await pool.at(server.url).request("GET", "/endless")
    assert (response.text, response.truncated) == ("x" * 5000, True)


async def test_a_body_that_drips_for_ever_is_given_up(server: Server) -> None:
    async with ApiClient(ApiSettings(attempt_seconds=0.3, retries=1, backoff_seconds=0.001)) as pool:
        with pytest.raises(ServiceError, match=r"took longer than 0.3 s \(attempt 2\)"):
            await pool.at(server.url).request("GET", "/drip")


async def test_a_compressed_answer_was_not_asked_for(client: ApiClient) -> None:
    with pytest.raises(ServiceError, match="the content encoding 'gzip', which was not asked for"):
        await client.request("GET", "/packed")


async def test_nobody_there_is_a_fault_after_all_attempts_whatever_the_method(client: ApiClient) -> None:
    with pytest.raises(ServiceError, match=r"failed: ConnectError.*attempt 3"):
        await client.at("http://127.0.0.1:1").request("POST", "/")


async def test_the_places_of_a_host_are_shared_by_all_its_callers() -> None:
    own = Server()
    with serve(app_of(own)) as url:
        async with ApiClient(ApiSettings(concurrency=2)) as pool:
            callers = [pool.at(url).with_headers({"X-Caller": f"number-{i}"}) for i in range(20)]
            answers = await asyncio.gather(*(caller.request("GET", "/gate") for caller in callers))
    assert [answer.text for answer in answers] == ["through"] * 20
    assert own.most == 2


async def test_waiting_for_a_place_stops_the_clock(server: Server) -> None:
    async with ApiClient(ApiSettings(concurrency=1)) as pool:
        api = pool.at(server.url)
        holder = asyncio.create_task(api.request("GET", "/drip"))
        await until(lambda: bool(server.seen))
        deadline = Deadline(60.0)
        waiting = asyncio.create_task(deadline.run(api.request("GET", "/gate")))
        await until(lambda: deadline._pauses == 1, "the clock stands still")
        assert not waiting.done()
        holder.cancel()
        assert (await waiting).text == "through"


async def test_requests_per_second_are_spaced_evenly(server: Server) -> None:
    async with ApiClient(ApiSettings(requests_per_second=50)) as pool:
        api, begun = pool.at(server.url), time.monotonic()
        await asyncio.gather(*(api.request("GET", "/gate") for _ in range(10)))
    assert time.monotonic() - begun >= 9 / 50 - 0.001  # the resolution of the loop's timers


async def test_cancelled_callers_give_their_places_back(server: Server) -> None:
    async with ApiClient(ApiSettings(concurrency=1)) as pool:
        api = pool.at(server.url)
        tasks = [asyncio.create_task(api.request("GET", "/drip")) for _ in range(3)]
        await until(lambda: bool(server.seen))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await api.request("GET", "/gate")).text == "through"


# Redirects.


async def test_a_redirect_within_the_origin_is_followed_with_credentials(client: ApiClient) -> None:
    response = await client.with_headers({"X-Token": "abcdefgh"}).request("GET", "/to?url=/echo")
    assert json.loads(response.text)["headers"]["x-token"] == REDACTED


async def test_no_redirect_leaves_the_origin(client: ApiClient, server: Server) -> None:
    other = Server()
    with serve(app_of(other)) as url:
        api = client.with_headers({"Authorization": "Bearer abcdefgh"})
        for target in (f"{url}/echo", url.replace("127.0.0.1", "localhost") + "/echo", "http://169.254.169.254/latest"):
            response = await api.request("GET", f"/to?url={target}")
            assert (response.status, response.location) == (302, target)
        with_password = server.url.replace("//", "//me:you@") + "/echo"
        assert (await client.request("GET", f"/to?url={with_password}")).status == 302
    assert other.seen == []


async def test_redirects_in_a_circle_end(client: ApiClient, server: Server) -> None:
    assert (await client.request("GET", "/loop")).status == 302
    assert server.counts["/loop"] == 5


# Credentials.


async def test_what_echoes_a_secret_is_redacted(
    client: ApiClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    headers = headers_from_env({"Authorization": "Bearer ${MY_TOKEN}", "X-Key": "MY_TOKEN"})
    api = client.at(server.url).with_credentials(headers)
    api = api.with_credentials(Credentials(query={"key": SECRET}, cookies={"sid": "cookie-value"}))
    response = await api.request("GET", "/echo?a=1")
    sent = server.seen[-1]
    assert (sent.headers["authorization"], sent.headers["x-key"]) == (f"Bearer {SECRET}", SECRET)
    assert (dict(sent.query_params), sent.cookies) == ({"a": "1", "key": SECRET}, {"sid": "cookie-value"})
    assert SECRET not in response.text and "tok%2Fen" not in response.text
    assert json.loads(response.text)["headers"]["x-key"] == REDACTED


async def test_a_secret_across_the_cap_is_not_shown_in_part(server: Server) -> None:
    for size in range(972, 1001, 7):
        async with ApiClient(ApiSettings(max_bytes=1000)) as pool:
            api = pool.at(server.url).with_headers({"Authorization": "Bearer abcdefghijkl"})
            text = (await api.request("GET", f"/padded/{size}")).text
        assert text == ("." * size + REDACTED)[:1000]


async def test_no_secret_is_in_errors_logs_reprs_or_pickles(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_TOKEN", "very-secret-value")
    caplog.set_level(logging.DEBUG, "httpx")
    async with ApiClient(ApiSettings(retries=0, attempt_seconds=0.5)) as pool:
        api = pool.at(server.url).with_credentials(headers_from_env({"X-Key": "MY_TOKEN"}))
        api = api.with_credentials(Credentials(query={"key": "very-secret-value"}))
        await api.request("GET", "/echo")
        with pytest.raises(ServiceError) as failure:
            await api.request("GET", "/drip/../drip?q=very-secret-value")
        assert "very-secret-value" not in f"{failure.value!r} {api!r} {pool!r} {pool.settings}"
        with pytest.raises(TypeError, match="pickle its settings"):
            pickle.dumps(api)
        assert pickle.loads(pickle.dumps(pool.settings)) == pool.settings
    logged = [record for record in caplog.records if "/echo" in record.getMessage()]
    assert logged and not any("very-secret-value" in record.getMessage() for record in logged)


def test_a_secret_is_found_in_the_ways_it_is_written() -> None:
    credentials = Credentials().with_headers({"Authorization": f"Bearer {SECRET.replace(' ', '')}"})
    secret = SECRET.replace(" ", "")
    ways = [secret, json.dumps(secret), "tok%2Fen%2Bwith%3Dodd%27signs%27", base64.b64encode(secret.encode()).decode()]
    for way in ways:
        assert way.strip('"=') not in credentials.redact(f"before {way} after")
    assert credentials.redact("before and after") == "before and after"


@pytest.mark.parametrize(
    ("template", "value", "problem"),
    [
        ("MY_TOKEN", "", "MY_TOKEN, which holds a credential, is not set"),
        ("MY_TOKEN", "abc", "fewer than 4 characters"),
        ("MY_TOKEN", "two\nlines", "no HTTP header may have"),
        ("Bearer abcdef", "abcdef", "names no environment variable"),
    ],
)
def test_a_bad_credential_is_one_sentence_without_its_value(
    monkeypatch: pytest.MonkeyPatch, template: str, value: str, problem: str
) -> None:
    monkeypatch.setenv("MY_TOKEN", value)
    with pytest.raises(UserError, match=problem) as error:
        headers_from_env({"Authorization": template})
    assert not value or value not in str(error.value)


async def test_cookies_of_one_episode_do_not_reach_another(client: ApiClient, server: Server) -> None:
    await client.request("GET", "/cookie")
    await client.request("GET", "/echo")
    assert "cookie" not in server.seen[-1].headers


# Settings.


def test_mistakes_in_the_settings_are_said() -> None:
    for url in ("", "ftp://a", "http://", "a.com", "http://u:p@a.com", "http://a.com?x=1", "http://[", "\0"):
        with pytest.raises(UserError, match="is not the base URL of a service"):
            ApiClient().at(url)
    for name in ("requests_per_second", "concurrency", "attempt_seconds", "max_bytes"):
        with pytest.raises(UserError, match=f"{name} of the API client is 0"):
            ApiSettings(**{name: 0})


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(UserError, match="not open"):
        await ApiClient().at("http://127.0.0.1:1").request("GET", "/")
