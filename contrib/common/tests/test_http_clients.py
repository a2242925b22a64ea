"""What the clients of HTTP share: proxies of the environment, never for this machine, and waits in all their forms."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from time import monotonic

import pytest

from contrib.common.http_clients import Retries, is_here, no_proxy, proxy_of, retry_after
from forge_env.core.errors import UserError
from tests.helpers.proxies import VARIABLES


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# ---- waits ----


NOW = datetime(2026, 11, 8, 12, 0, 0, tzinfo=UTC)


def ahead(**time: float) -> datetime:
    return NOW + timedelta(**time)


WAITS: dict[str, tuple[dict[str, str], float]] = {
    "nothing": ({}, 0),
    "seconds": ({"Retry-After": "7"}, 7),
    "a fraction": ({"retry-after": " 0.25 "}, 0.25),
    "milliseconds": ({"Retry-After-Ms": "1500"}, 1.5),
    "milliseconds before seconds": ({"retry-after": "2", "retry-after-ms": "1500"}, 1.5),
    "a date": ({"retry-after": format_datetime(ahead(seconds=60), usegmt=True)}, 60),
    "a date without GMT": ({"retry-after": format_datetime(ahead(seconds=60).replace(tzinfo=None))}, 60),
    "a date of RFC 850": ({"retry-after": f"{ahead(days=1):%A, %d-%b-%y %H:%M:%S} GMT"}, 86_400),
    "a date of asctime": ({"retry-after": f"{ahead(days=1):%a %b %e %H:%M:%S %Y}"}, 86_400),
    "a date in ISO form": ({"retry-after": f"{ahead(seconds=60):%Y-%m-%dT%H:%M:%SZ}"}, 60),
    "a date that is over": ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
    "seconds since 1970, in Retry-After": ({"retry-after": f"{ahead(seconds=60).timestamp():.0f}"}, 60),
    "a duration": ({"retry-after": "1m30s"}, 90),
    "a duration in words": ({"retry-after": "2 minutes"}, 120),
    "two headers": ({"retry-after": "5, 30"}, 30),
    "X": ({"x-rate-limit-remaining": "0", "x-rate-limit-reset": f"{ahead(seconds=60).timestamp():.0f}"}, 60),
    "a duration in place of milliseconds": ({"retry-after-ms": "2s"}, 2),
    "milliseconds of Azure": ({"x-ms-retry-after-ms": "1500"}, 1.5),
    "less than nothing": ({"retry-after": "-5"}, 0),
    "no number": ({"retry-after": "nan"}, 0),
    "no end": ({"retry-after": "inf"}, 0),
    "words": ({"retry-after": "soon"}, 0),
    "words, and seconds": ({"retry-after-ms": "soon", "retry-after": "2"}, 2),
    "far too long": ({"retry-after": "9" * 400}, float("inf")),
    "OpenAI": (
        {
            "x-ratelimit-remaining-requests": "12",
            "x-ratelimit-reset-requests": "6m0s",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "250ms",
        },
        0.25,
    ),
    "OpenAI, both": ({"x-ratelimit-reset-requests": "8.64s", "x-ratelimit-reset-tokens": "1m2.5s"}, 62.5),
    "Groq says both": ({"retry-after": "2", "x-ratelimit-reset-tokens": "7.66s"}, 2),
    "Azure": ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20"}, 20),
    "OpenRouter": (
        {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{ahead(seconds=60).timestamp() * 1000:.0f}"},
        60,
    ),
    "seconds since 1970": ({"x-ratelimit-reset": f"{ahead(seconds=60).timestamp():.0f}"}, 60),
    "Anthropic": (
        {
            "anthropic-ratelimit-tokens-remaining": "0",
            "anthropic-ratelimit-tokens-reset": f"{ahead(seconds=60):%Y-%m-%dT%H:%M:%SZ}",
        },
        60,
    ),
    "IETF": ({"RateLimit": "r=0;t=30"}, 30),
    "IETF, two limits": ({"ratelimit": '"burst";r=4;t=90, "day, r=0";r=0;t=45'}, 45),
    "IETF, nothing is used up": ({"ratelimit": '"day";r=7;t=45'}, 0),
    "IETF in 2023": ({"ratelimit": "limit=100, remaining=0, reset=50"}, 50),
    "IETF in 2023, nothing is used up": ({"ratelimit": "limit=100, remaining=9, reset=50"}, 0),
    "IETF in 2021": ({"RateLimit-Limit": "9", "RateLimit-Remaining": "0", "RateLimit-Reset": "30"}, 30),
    "IETF in words": ({"ratelimit": "soon"}, 0),
    "nothing is used up": ({"x-ratelimit-remaining-requests": "12", "x-ratelimit-reset-requests": "6m0s"}, 0),
}


@pytest.mark.parametrize("case", WAITS)
def test_a_wait_is_read_in_each_form(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    headers, seconds = WAITS[case]
    monkeypatch.setattr("contrib.common.http_clients.time", NOW.timestamp)
    assert retry_after(headers) == pytest.approx(seconds)


# ---- proxies ----


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *[(host, True) for host in ("127.0.0.1", "localhost", "LOCALHOST.", "::1", "[::1]", "127.8.9.10", "0.0.0.0")],
        *[(host, True) for host in ("::ffff:127.0.0.1", "api.localhost", socket.gethostname(), "::")],
        *[
            (host, False)
            for host in ("localhost.example.com", "128.0.0.1", "10.0.0.1", "example.com", "", "2001:db8::1")
        ],
    ],
)
def test_this_machine_is_known_by_its_names(host: str, here: bool) -> None:
    assert is_here(host) == here


PROXIES: dict[str, tuple[dict[str, str], dict[str, str | None]]] = {
    "none": ({}, {"http://a.example": None, "https://a.example": None}),
    "of each scheme": (
        {"HTTP_PROXY": "http://p:1", "https_proxy": "http://q:2"},
        {"http://a.example": "http://p:1", "https://a.example": "http://q:2", "ws://a.example": "http://p:1"},
    ),
    "of all schemes": (
        {"all_proxy": "http://p:1", "HTTPS_PROXY": "http://q:2"},
        {"http://a.example": "http://p:1", "wss://a.example": "http://q:2"},
    ),
    "without a scheme": ({"HTTP_PROXY": "p:1"}, {"http://a.example": "http://p:1"}),
    "this machine": (
        {"ALL_PROXY": "http://p:1"},
        {f"http://{host}:9": None for host in ("127.0.0.1", "localhost", "[::1]", socket.gethostname())},
    ),
    "NO_PROXY": (
        {"HTTP_PROXY": "http://p:1", "NO_PROXY": "a.example, .b.example,*.c.example,d.example:81,10.0.0.0/8,::2"},
        {
            "http://a.example": None,
            "http://x.a.example": None,
            "http://xa.example": "http://p:1",
            "http://x.b.example": None,
            "http://x.c.example": None,
            "http://d.example": "http://p:1",
            "http://d.example:81": None,
            "http://10.2.3.4": None,
            "http://11.2.3.4": "http://p:1",
            "http://[::2]": None,
        },
    ),
    "NO_PROXY in both cases": (
        {"HTTP_PROXY": "http://p:1", "NO_PROXY": "a.example", "no_proxy": "b.example"},
        {"http://a.example": None, "http://B.example": None, "http://c.example": "http://p:1"},
    ),
    "NO_PROXY in brackets": ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "[::2]"}, {"http://[::2]:8000": None}),
    "NO_PROXY for all": ({"HTTP_PROXY": "http://p:1", "no_proxy": "*"}, {"http://a.example": None}),
}


@pytest.mark.parametrize("case", PROXIES)
def test_the_environment_names_the_proxy(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    variables, expected = PROXIES[case]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert {url: proxy_of(url) for url in expected} == expected


@pytest.mark.parametrize("value", ["ftp://me:hunter2@p:1", "http://", "http://p:port", "socks4://p:1"])
def test_a_proxy_that_is_none_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", value)
    with pytest.raises(UserError, match="HTTPS_PROXY holds no address of a proxy") as caught:
        proxy_of("https://a.example")
    assert "hunter2" not in str(caught.value)
    assert proxy_of("https://localhost") is None


def test_programs_get_what_this_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "small.example")
    monkeypatch.setenv("NO_PROXY", "large.example,127.0.0.1")
    made = no_proxy("10.0.0.5")
    assert made["NO_PROXY"] == made["no_proxy"]
    names = made["no_proxy"].split(",")
    assert {"small.example", "large.example", "127.0.0.1", "localhost", "::1", "10.0.0.5"} < set(names)
    assert len(names) == len(set(names))


def test_retries_wait_longer_each_time_and_end_by_number_or_time() -> None:
    retries = Retries(1.0, 4.0, most=4)
    pauses = [retries.pause() for _ in range(5)]
    assert pauses[4] is None
    assert all(most / 2 <= (pause or 0.0) <= most for pause, most in zip(pauses, (1, 2, 4, 4), strict=False))
    assert Retries(1.0, 4.0).pause(minimum=60.0) == 60.0
    assert Retries(1.0, 4.0, until=monotonic() + 30).pause(minimum=60.0) is None
    endless = Retries(1.0, 4.0, failures=10_000)
    assert 2 <= (endless.pause() or 0.0) <= 4
