"""ApiClient: the HTTP calls of tools, with limits for each host, retries, and credentials that are never shown.

Protection: Credentials are sent to the origin (scheme, host and port) of the base URL only. Redirects are followed
within that origin only, so a response cannot lead to another host or to a private address. Credentials are redacted
from all responses and errors. A body is read up to a limit, and compression is not accepted, so no response fills the
memory. Cookies that a response sets are dropped, since episodes share the connections.
Not covered: the user may name a base URL with a host that resolves to a private address.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from contrib.apis.http.cassette import CURSOR
from contrib.apis.http.credentials import EXTENSION, Credentials
from contrib.apis.http.pool import ApiSettings, Pool
from contrib.common.http_clients import Retries, retry_after
from contrib.common.json_text import decoded
from forge_env.core.errors import ServiceError, UserError
from forge_env.utils.deadlines import queued

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
TRANSIENT = frozenset({429, 500, 502, 503, 504})
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)  # the request has not reached the service
_MAX_HOPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    status: int
    reason: str
    content_type: str
    body: bytes
    truncated: bool = False
    """Whether the body was longer than what is read."""
    location: str = ""
    """Target of a redirect that was not followed."""
    retry_after: float = 0.0
    """Seconds that the service asks to wait."""

    @property
    def text(self) -> str:
        return decoded(self.body)


class ApiClient:
    """Calls services over pooled connections. `at` gives a client of one service, `with_headers` one of one caller."""

    def __init__(self, settings: ApiSettings | None = None) -> None:
        self.settings = settings or ApiSettings()
        self.base_url = ""
        self._pool = Pool(self.settings)
        self._credentials = Credentials()
        self._cursor: dict[str, int] = {}
        self._named_by = ""

    async def __aenter__(self) -> ApiClient:
        self._pool.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._pool.close()

    def __repr__(self) -> str:
        return f"ApiClient({self.base_url!r}, {self._credentials!r})"

    def __reduce__(self) -> Any:
        raise TypeError("an ApiClient holds connections and credentials: pickle its settings")

    def at(self, base_url: str, *, named_by: str = "", max_bytes: int = 0) -> ApiClient:
        """Return a client of one service over the same connections, without credentials.

        Args:
            base_url: prefix of the targets of `request`.
            named_by: the document that names the base URL, where not the user does: credentials are refused then.
            max_bytes: the most that it reads of a body; 0 is what the settings say.
        """
        _check_base(base_url)
        bound = self._bound(base_url.rstrip("/"), Credentials())
        bound._named_by = named_by
        bound.settings = replace(self.settings, max_bytes=max_bytes or self.settings.max_bytes)
        return bound

    def with_credentials(self, credentials: Credentials) -> ApiClient:
        self._check_named()
        return self._bound(self.base_url, self._credentials.join(credentials))

    def with_headers(self, headers: Mapping[str, str]) -> ApiClient:
        """Return a client for one caller, such as an episode; cheap. The values are redacted like all credentials.

        The client replays the recordings of a cassette from the start.
        """
        if headers:
            self._check_named()
        return self._bound(self.base_url, self._credentials.with_headers(headers))

    def redact(self, text: str) -> str:
        return self._credentials.redact(text)

    async def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] = {},
        content: bytes | None = None,
        idempotent: bool | None = None,
    ) -> ApiResponse:
        """Send a request, and repeat it if that is safe and may help.

        Args:
            target: path and query below the base URL, percent-encoded.
            idempotent: whether it may be sent twice; by default by its method or an Idempotency-Key header.
        """
        if idempotent is None:
            idempotent = method in IDEMPOTENT or any(name.lower() == "idempotency-key" for name in headers)
        request = self._pool.client.build_request(
            method,
            self.base_url + target,
            headers=dict(headers),
            content=content,
            extensions={EXTENSION: self._credentials, CURSOR: self._cursor},
        )
        longest = self.settings.max_pause_seconds
        retries = Retries(self.settings.backoff_seconds, longest, self.settings.retries)
        while True:
            response, problem, may_repeat = await self._try(request, idempotent)
            if response is not None and not problem:
                return response
            pause = retries.pause(response.retry_after if response is not None else 0.0)
            if not may_repeat or pause is None or pause > longest:
                what = f"{method} {self.base_url}{target.partition('?')[0]} {problem}"
                raise ServiceError(self.redact(f"{what} (attempt {retries.failures})"))
            async with queued():
                await asyncio.sleep(pause)

    async def _try(self, request: httpx.Request, idempotent: bool) -> tuple[ApiResponse | None, str, bool]:
        """Make one attempt. Return the response, the problem, and whether another attempt is safe and may help."""
        try:
            response = await self._attempt(request)
        except TimeoutError:
            return None, f"took longer than {self.settings.attempt_seconds:g} s", idempotent
        except httpx.TransportError as error:
            return None, f"failed: {type(error).__name__}: {error}", idempotent or isinstance(error, _UNSENT)
        if response.status < 500 and response.status != 429:
            return response, "", False
        may_repeat = response.status in TRANSIENT and (idempotent or response.status == 429)
        return response, f"was answered with {response.status} {response.reason}", may_repeat

    async def _attempt(self, request: httpx.Request) -> ApiResponse:
        async with self._pool.limits(request.url.host).slot(), asyncio.timeout(self.settings.attempt_seconds):
            next_request: httpx.Request | None = request
            for _ in range(_MAX_HOPS):
                if next_request is None:
                    break
                response, next_request = await self._exchange(next_request)
            return response

    async def _exchange(self, request: httpx.Request) -> tuple[ApiResponse, httpx.Request | None]:
        """Send a request once. Return the response, and the request of its redirect if it may be followed."""
        response = await self._pool.client.send(request, stream=True)
        try:
            answer = await self._answer(response)
        finally:
            await response.aclose()
        next_request = response.next_request
        is_followed = next_request is not None and _origin(next_request.url) == _origin(request.url)
        return answer, next_request if is_followed else None

    async def _answer(self, response: httpx.Response) -> ApiResponse:
        headers = response.headers
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise httpx.RemoteProtocolError(f"the content encoding {encoding!r}, which was not asked for")
        body, truncated = await self._read(response)
        kind, charset = headers.get("content-type", "").partition(";")[0].strip().lower(), response.charset_encoding
        if charset or kind.startswith("text/") or "json" in kind or "xml" in kind:
            # Redacted again: a secret has other bytes in UTF-16.
            body = self.redact(decoded(body, charset or "")).encode("utf-8", "replace")
        return ApiResponse(
            status=response.status_code,
            reason=self.redact(response.reason_phrase),
            content_type=self.redact(kind),
            body=body,
            truncated=truncated,
            location=self.redact(headers.get("location", "")),
            retry_after=retry_after(headers),
        )

    async def _read(self, response: httpx.Response) -> tuple[bytes, bool]:
        """Read up to the limit, and further by the longest secret, so that no part of a secret is shown."""
        cap = self.settings.max_bytes
        margin = self._credentials.longest
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > cap + margin:
                break
        return self._credentials.redact_bytes(bytes(body[: cap + margin]))[:cap], len(body) > cap

    def _bound(self, base_url: str, credentials: Credentials) -> ApiClient:
        bound = object.__new__(ApiClient)
        bound.settings, bound._pool = self.settings, self._pool
        bound.base_url, bound._credentials, bound._cursor = base_url, credentials, {}
        bound._named_by = self._named_by
        return bound

    def _check_named(self) -> None:
        if self._named_by:
            raise UserError(
                f"{self._named_by} says that its service is {self.base_url}, and credentials go only where you say: "
                f"give base_url={self.base_url} if that is right"
            )


def is_url(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


def _origin(url: httpx.URL) -> tuple[str, str, int | None, bytes]:
    return url.scheme, url.host, url.port, url.userinfo


def _check_base(base_url: str) -> None:
    try:
        url = httpx.URL(base_url)
        is_host = re.fullmatch(rb"[A-Za-z0-9._:-]+", url.raw_host) is not None
        is_good = url.scheme in ("http", "https") and is_host and not (url.userinfo or url.query or url.fragment)
    except (httpx.InvalidURL, TypeError, ValueError):
        is_good = False
    if not is_good:
        raise UserError(
            f"{base_url!r} is not the base URL of a service: it is http:// or https://, the host and perhaps a path, "
            "without a password or a query"
        )
