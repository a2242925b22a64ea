"""Client of an OpenAI-compatible chat endpoint: pooled connections, retries, a rate limit and time limits.

The API key is read from the environment for every request and goes only into that request's header. It is removed from
everything that the server sends back, errors included, before anything else reads it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import httpx

from contrib.chat.refusals import says_context_full
from contrib.chat.reply import Broken, Reply, headers_in, message_of, read_reply, redact, says_no_quota
from contrib.chat.stream import read_body
from contrib.common.http_clients import Retries, connection, is_here, retry_after
from contrib.common.usage import Usage
from forge_env.core.errors import PolicyError, UserError
from forge_env.core.protocols import EndpointFull
from forge_env.core.usage import Prices
from forge_env.utils.deadlines import queued

_CONNECT_SECONDS = 10.0
_CONNECTIONS = 32
"""Of one httpx client, which looks at all of its connections for every request: 1,024 in one took it 3 ms."""
_RETRIED = {408, 409, 429} | set(range(500, 600))
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


@dataclass(slots=True)
class _Pool:
    """The connections of one event loop."""

    clients: list[httpx.AsyncClient]
    free: list[httpx.AsyncClient]
    """The client of each connection that is free; the last is taken first."""
    slots: asyncio.Semaphore


@dataclass(kw_only=True, eq=False)
class ChatClient:
    """Calls one model behind an OpenAI-compatible endpoint. It can be pickled; connections are not.

    Raises:
        UserError: a setting is out of range, or a remote endpoint has no API key.
    """

    model: str
    base_url: str
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the API key; "" for an endpoint that needs none, as on localhost."""
    max_concurrency: int = 16
    requests_per_minute: float | None = None
    timeout: float = 120.0
    """Seconds for one answer, with retries and the pauses between them, without the wait for a free connection. For a
    streamed answer only the pauses and the failed attempts count."""
    idle_timeout: float | None = None
    """Stream the answer, without a total limit; it fails if no byte came for this number of seconds."""
    retries: int = 4
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request; a None removes a field that this client sends."""
    prices: Prices | None = None
    """Prices of the endpoint; `Usage.spent` then counts the cost."""
    usage: Usage = field(default_factory=Usage)
    _next_start: float = field(default=0.0, init=False, repr=False)
    _pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/")
        try:
            url = urlsplit(self.base_url)
            plain = url.scheme in ("http", "https") and url.hostname and url.port != 0
        except ValueError:
            raise UserError(f"base_url {self.base_url!r} is no address: write it as 'https://host/v1'") from None
        if not plain or "@" in url.netloc or url.query:
            address = f"{url.scheme}://{url.hostname or ''}{url.path}"  # not all of it: it may contain a password
            raise UserError(
                f"base_url {address!r} is no plain address: write it as 'https://host/v1', the key goes elsewhere"
            )
        if self.idle_timeout is not None and not self.idle_timeout > 0:
            raise UserError(f"idle_timeout={self.idle_timeout} is not above 0; None asks for whole answers")
        if self.max_concurrency < 1 or not self.timeout > 0 or self.retries < 0:
            raise UserError(
                f"max_concurrency={self.max_concurrency}, timeout={self.timeout}, retries={self.retries}: "
                "they are at least 1, above 0 and at least 0"
            )
        if self.requests_per_minute is not None and not self.requests_per_minute > 0:
            raise UserError(f"requests_per_minute={self.requests_per_minute} is not above 0; None sets no limit")
        self._key()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_pools"} | {"_next_start": 0.0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pools=WeakKeyDictionary())

    async def aclose(self) -> None:
        """Close the connections of the running event loop. A later request opens new connections."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await asyncio.gather(*(client.aclose() for client in pool.clients))

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int,
        temperature: float | None = None,
        timeout: float | None = None,
        seed: int | None = None,
        used: Usage | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Reply:
        """The answer to a conversation.

        Args:
            messages: in the endpoint's form.
            tools: the tools that the model may call.
            max_tokens: of the answer.
            temperature: of sampling; None leaves it to the endpoint.
            timeout: in seconds; the client's by default.
            seed: of sampling; None sends none, since some endpoints refuse one.
            more: further fields of this request.
            used: the usage of this call is added to it, also if the call fails.

        Raises:
            UserError: the endpoint refuses the key, or does not know the model.
            EndpointFull: the endpoint says that the conversation is too long.
            PolicyError: no readable answer came within the retries and the time limit.
        """
        # OpenAI's models require the new name; most other servers know only the old one.
        limit = "max_completion_tokens" if urlsplit(self.base_url).hostname == "api.openai.com" else "max_tokens"
        body: dict[str, Any] = {"model": self.model, "messages": list(messages), limit: max_tokens}
        if self.idle_timeout is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= {"temperature": temperature, "seed": seed, "tools": list(tools) or None}
        body |= {**(more or {}), **self.extra_body}
        text = json.dumps({k: v for k, v in body.items() if v is not None}, ensure_ascii=False)
        # A model may write lone surrogates, which UTF-8 cannot encode.
        content = text.encode("utf-8", "replace")
        tallies = (self.usage,) if used is None else (self.usage, used)
        async with self._slot() as client:
            return await self._retry(client, content, self.timeout if timeout is None else timeout, tallies)

    async def _retry(
        self, client: httpx.AsyncClient, content: bytes, seconds: float, tallies: Sequence[Usage]
    ) -> Reply:
        remaining_s, retries = seconds, Retries(_FIRST_PAUSE, _LONGEST_PAUSE, self.retries)
        while True:
            await self._wait_for_rate_limit()
            start = time.monotonic()
            _count(tallies, Usage(requests=1))
            result = await self._attempt(client, content, remaining_s, seconds)
            if isinstance(result, Reply):
                _count(tallies, self._usage_of(result))
                return result
            if result.is_full:
                raise EndpointFull(f"{self.base_url}: {result.reason}")
            remaining_s -= time.monotonic() - start
            pause = retries.pause(result.wait)
            if not result.retry or pause is None:
                attempts = f" ({retries.failures} attempts)" if retries.failures > 1 else ""
                raise self._error(f"{result.reason}{attempts}")
            if pause >= remaining_s:
                raise self._error(
                    f"{result.reason}; too little of the {seconds:g} s is left to wait {pause:.1f} s and try again"
                )
            _count(tallies, Usage(retries=1))
            await asyncio.sleep(pause)
            remaining_s -= pause

    async def _attempt(
        self, client: httpx.AsyncClient, content: bytes, remaining_s: float, seconds: float
    ) -> Reply | Broken:
        key, headers = self._key(), {"Content-Type": "application/json", **self.headers()}
        idle = self.idle_timeout
        limits = httpx.Timeout(None, connect=_CONNECT_SECONDS, read=idle)
        url = f"{self.base_url}/chat/completions"
        try:
            # No retry after a time-out of this client: the server may still be working on the first request.
            async with (
                asyncio.timeout(remaining_s if idle is None else None),
                client.stream("POST", url, content=content, headers=headers, timeout=limits) as response,
            ):
                body = await read_body(response)
        except TimeoutError:
            raise self._error(f"did not answer within {seconds:g} s") from None
        except httpx.ReadTimeout:
            raise self._error(f"sent nothing for {idle:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:  # never chained: the request in it holds the key
            reason = f"the connection failed: {type(error).__name__}: {error}".rstrip(": ")
            return Broken(reason=redact(reason, key))
        if body is None:
            return Broken(reason="its stream ended before the answer did")
        data = redact(body, key)
        result = read_reply(data) if response.status_code == 200 else self._refusal(response, data)
        if isinstance(result, Reply):
            return result
        return replace(result, wait=retry_after({**response.headers, **headers_in(data)}))

    def _usage_of(self, reply: Reply) -> Usage:
        prompt, completion = reply.usage["prompt_tokens"], reply.usage["completion_tokens"]
        cost = None if self.prices is None else self.prices.cost(prompt, completion)
        return Usage(prompt_tokens=prompt, completion_tokens=completion, spent=cost)

    def _refusal(self, response: httpx.Response, data: Any) -> Broken:
        status, message = response.status_code, message_of(data)
        reason = f"HTTP {status}: {message}"
        if status in (401, 403):
            where = f"in the environment variable {self.api_key_env}" if self.api_key_env else "(none was sent)"
            raise UserError(
                f"{self.base_url} refused the API key {where} ({reason}): set a key that may use {self.model!r}"
            )
        if status == 404:
            raise UserError(
                f"{self.base_url} has no model {self.model!r} ({reason}): check the model's name and base_url"
            )
        retry = status in _RETRIED and not says_no_quota(data) and response.headers.get("x-should-retry") != "false"
        return Broken(reason=reason, is_full=says_context_full(data, status), retry=retry)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[httpx.AsyncClient]:
        """A connection slot of this event loop; the wait for it stops the episode's clocks.

        The wait is bounded: every slot is released after `timeout` seconds and one wait for the rate limit.
        """
        pool = self._pool()
        async with queued():
            await pool.slots.acquire()
        client = pool.free.pop()
        try:
            yield client
        finally:
            pool.free.append(client)
            pool.slots.release()

    async def _wait_for_rate_limit(self) -> None:
        """Wait until the rate limit allows one more request: requests are spread evenly over the minute."""
        if self.requests_per_minute is None:
            return
        now = time.monotonic()
        start = max(now, self._next_start)
        self._next_start = start + 60 / self.requests_per_minute
        if start > now:
            async with queued():
                await asyncio.sleep(start - now)

    def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            for old_loop in [other for other in self._pools if other.is_closed()]:
                del self._pools[old_loop]
            counts = [min(_CONNECTIONS, self.max_concurrency - n) for n in range(0, self.max_concurrency, _CONNECTIONS)]
            clients = [self._open(count) for count in reversed(counts)]
            free = [client for client, count in zip(clients, reversed(counts), strict=True) for _ in range(count)]
            self._pools[loop] = _Pool(clients, free, asyncio.Semaphore(self.max_concurrency))
        return self._pools[loop]

    def _open(self, connections: int) -> httpx.AsyncClient:
        # No redirects: the key would go to another server. `_attempt` sets the time limits.
        return httpx.AsyncClient(
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            follow_redirects=False,
            **connection(self.base_url),
        )

    def headers(self) -> dict[str, str]:
        """The headers of a request: the API key, if there is one."""
        key = self._key()
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _key(self) -> str:
        key = os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""
        if not key and self.api_key_env and not is_here(urlsplit(self.base_url).hostname or ""):
            raise UserError(
                f"there is no API key for {self.base_url}: set the environment variable {self.api_key_env}, "
                "or api_key_env to the name of the one that holds it ('' for an endpoint that takes none)"
            )
        if not (key.isascii() and key.isprintable()):
            raise UserError(
                f"the environment variable {self.api_key_env} holds characters that no API key has: set it again"
            )
        return key

    def _error(self, reason: str) -> PolicyError:
        return PolicyError(f"{self.model} at {self.base_url}: {reason}")


def _count(tallies: Sequence[Usage], usage: Usage) -> None:
    for tally in tallies:
        tally.add(usage)
