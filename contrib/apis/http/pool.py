"""ApiSettings, and the pool that clients with the same settings share: connections, rate limits, the cassette."""

from __future__ import annotations

from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from contrib.apis.http.cassette import Cassette, CassetteTransport
from contrib.apis.http.credentials import AuthTransport
from contrib.apis.http.rate_limits import HostLimits
from contrib.common.http_clients import proxy_of, ssl_context
from forge_env.core.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """How services are called. It holds no secrets, so it may be logged and pickled."""

    requests_per_second: float | None = None
    """For each host; None for no limit."""
    concurrency: int = 32
    """Open requests, for each host."""
    retries: int = 2
    """Further attempts of requests that may be repeated."""
    attempt_seconds: float = 10.0
    """Limit of one attempt, from the connection to the last byte."""
    backoff_seconds: float = 0.25
    """Pause before the second attempt; doubled each time, with jitter."""
    max_pause_seconds: float = 10.0
    """The longest pause before an attempt. A Retry-After beyond it gives up at once."""
    max_bytes: int = 256 * 1024
    """The most that is read of a body."""
    cassette: str = ""
    """File of recorded answers; see `contrib.apis.http.cassette`."""
    cassette_mode: str = "off"

    def __post_init__(self) -> None:
        for name in ("requests_per_second", "concurrency", "attempt_seconds", "max_pause_seconds", "max_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{name} of the API client is {value!r}; it is a number above 0")
        if self.retries < 0 or self.backoff_seconds < 0:
            raise UserError("retries and backoff_seconds of the API client are 0 or more")

    @property
    def longest_seconds(self) -> float:
        return (self.retries + 1) * self.attempt_seconds + self.retries * self.max_pause_seconds


class Pool:
    """Connections to any number of hosts, for one event loop. The owner opens and closes it."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._hosts: dict[str, HostLimits] = {}
        self._client: httpx.AsyncClient | None = None

    @property
    def client(self) -> httpx.AsyncClient:
        if self._client is None:
            raise UserError("the API client is not open: use it inside `async with ApiClient() as client`")
        return self._client

    def open(self) -> None:
        self._client = httpx.AsyncClient(
            transport=self._transport(),
            timeout=self._settings.attempt_seconds,
            follow_redirects=False,
            headers={"User-Agent": "forge-env", "Accept-Encoding": "identity"},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # episodes share this, so no cookie is kept
        )

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    def limits(self, host: str) -> HostLimits:
        if host not in self._hosts:
            concurrency, per_second = self._settings.concurrency, self._settings.requests_per_second
            self._hosts[host] = HostLimits(host, concurrency=concurrency, per_second=per_second)
        return self._hosts[host]

    def _transport(self) -> httpx.AsyncBaseTransport:
        transport = AuthTransport(_Network())
        if self._settings.cassette_mode == "off":
            return transport
        return CassetteTransport(transport, Cassette(self._settings.cassette, self._settings.cassette_mode))


class _Network(httpx.AsyncBaseTransport):
    """Connections to all hosts, through the proxies that the environment names for them."""

    def __init__(self) -> None:
        self._transports: dict[str | None, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        proxy = proxy_of(str(request.url))
        if proxy not in self._transports:
            # HostLimits bounds the connections, so the transport needs no bound.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._transports[proxy] = httpx.AsyncHTTPTransport(limits=limits, verify=ssl_context(), proxy=proxy)
        return await self._transports[proxy].handle_async_request(request)

    async def aclose(self) -> None:
        for transport in self._transports.values():
            await transport.aclose()
