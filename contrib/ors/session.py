"""A session with a server: one episode, kept alive by pings, and deleted at its end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping
from time import monotonic
from typing import Any, NamedTuple

import httpx

from contrib.common.http_clients import Retries, connection, retry_after
from contrib.common.json_text import decoded, read, write
from contrib.ors.access import GONE, TRANSIENT, Access
from contrib.ors.events import MAX_BYTES, TooLong, read_events
from forge_env.core.errors import EnvError, MissedDeadline, ServiceError

REQUEST_SECONDS = 60.0
SILENCE_SECONDS = 30.0
"""Without a byte for so long, a stream is lost: servers send a comment every 10 s."""
CLOSE_SECONDS = 10.0
RETRIES = 3
PAUSE_SECONDS = 0.25
"""Before the second attempt; doubled each time, up to the longest."""
LONGEST_PAUSE_SECONDS = 5.0
MAX_FAILED_PINGS = 5


class CallResult(NamedTuple):
    """What a call of a tool came to: an output, or an error of the caller with its kind."""

    output: Mapping[str, Any] | None
    error: str = ""
    kind: str = ""


class Session:
    """Open it, call its tools, and close it. The seconds are those of `contrib.ors.env.Ors`."""

    def __init__(
        self, access: Access, environment: str, *, start_seconds: float, call_seconds: float, ping_seconds: float
    ) -> None:
        self._access, self._environment = access, environment
        self._start_seconds, self._call_seconds, self._ping_seconds = start_seconds, call_seconds, ping_seconds
        self._client = httpx.AsyncClient(
            base_url=access.url,
            headers=access.headers,
            timeout=httpx.Timeout(REQUEST_SECONDS, read=SILENCE_SECONDS),
            **connection(access.url),
        )
        self._id = ""
        self._pings: asyncio.Task[None] | None = None
        self._loss = ""
        self._is_open = True

    async def open(self, task_spec: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        self._id = await self._new_id()
        body = {"env_name": self._environment, "task_spec": dict(task_spec)}
        if secrets:  # other servers take them from the header alone
            answer = await self._send("POST", "/create", {**body, "secrets": dict(secrets)}, statuses=(422,))
        if not secrets or answer.status_code == 422:
            answer = await self._send("POST", "/create", body)
        self._decode(answer, "POST /create")
        self._pings = asyncio.create_task(self._ping(), name="ors pings")

    async def request(self, method: str, path: str) -> Any:
        return self._decode(await self._send(method, path), f"{method} {path}")

    async def optional(self, path: str) -> Any:
        """Send a GET to a part of the standard that a server may lack; None then."""
        response = await self._send("GET", path, statuses=(404, *range(300, 400)))
        return self._decode(response, f"GET {path}") if response.is_success else None

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call a tool. If its connection is lost, the call is resumed by its id; without an id it is not repeated."""
        if self._loss:
            raise ServiceError(f"the session at {self._access.url} is lost: {self._loss}")
        where = f"the call of {tool} at {self._access.url}"
        body = {"name": tool, "input": dict(arguments)}
        try:
            async with asyncio.timeout(self._call_seconds):
                result = await self._stream(f"/{self._environment}/call", body, where)
        except TimeoutError:
            raise MissedDeadline(f"{where} did not end within {self._call_seconds:g} s") from None
        if not isinstance(result, dict) or not isinstance(result.get("ok"), bool):
            raise ServiceError(f"{where} came to what the standard does not have: {str(result)[:100]!r}")
        if not result["ok"]:
            return CallResult(None, str(result.get("error", "")), str(result.get("reason") or "refused"))
        if not isinstance(result.get("output"), dict):
            raise ServiceError(f"{where} came to no output: {str(result)[:100]!r}")
        return CallResult(result["output"])

    async def close(self) -> None:
        """Delete the episode; may be called again. A server that does not answer deletes it by itself."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._pings is not None:
                self._pings.cancel()
                await asyncio.wait({self._pings})
            if self._id and not self._loss:
                async with asyncio.timeout(CLOSE_SECONDS):
                    for path in ("/delete", "/delete_session"):
                        await self._client.post(path, headers={"X-Session-ID": self._id})
        except (TimeoutError, httpx.HTTPError):
            pass
        finally:
            await self._client.aclose()

    async def _new_id(self) -> str:
        """Ask for a session; servers answer in JSON or in a stream of events."""
        response = await self._send("POST", "/create_session", {})
        id_ = ""
        if "event-stream" in response.headers.get("content-type", ""):
            async for event in read_events(_as_chunks(response.content)):
                id_ = event.data.strip() if event.kind == "task_id" else id_
                if event.kind == "end" and event.data.startswith("{"):
                    id_ = str(read(event.data).get("sid", id_))
        else:
            answer = self._decode(response, "POST /create_session")
            id_ = str(answer.get("sid", "")) if isinstance(answer, dict) else ""
        if not id_:
            raise ServiceError(f"{self._access.url} gave no id for a session: {response.text[:100]!r}")
        return id_

    def _decode(self, response: httpx.Response, what: str) -> Any:
        try:
            return read(decoded(response.content))
        except ValueError:
            raise ServiceError(f"{self._access.url} answered {what} without JSON") from None

    async def _send(
        self, method: str, path: str, body: Any = None, *, statuses: Collection[int] = ()
    ) -> httpx.Response:
        """Send a request, again after a temporary refusal; an environment that still starts has `start_seconds`.

        Other statuses than a success are errors, but for those in `statuses`.
        """
        what, headers = f"{method} {path}", {"X-Session-ID": self._id} if self._id else {}
        content = None if body is None else write(body)
        headers |= {"Content-Type": "application/json"} if content else {}
        retries = Retries(PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, RETRIES, until=monotonic() + self._start_seconds)
        while True:
            try:  # an older server is silent until the environment has set itself up
                response = await self._client.request(
                    method, path, content=content, headers=headers, timeout=self._start_seconds
                )
            except httpx.HTTPError as error:
                is_safe = method == "GET" or isinstance(error, httpx.ConnectError)
                pause = retries.pause()
                if pause is None or not is_safe or isinstance(error, httpx.TimeoutException):
                    words = f"{what} of {self._access.url} failed: {type(error).__name__}: {error}"
                    raise ServiceError(words.rstrip(": ")) from None
            else:
                if response.is_success or response.status_code in statuses:
                    return response
                is_starting = response.headers.get("x-backend-state") == "starting"
                retries.most = math.inf if is_starting else RETRIES
                pause = retries.pause(min(retry_after(response.headers), REQUEST_SECONDS))
                if response.status_code not in TRANSIENT or pause is None:
                    raise self._access.refusal(what, response)
            await asyncio.sleep(pause)

    async def _stream(self, path: str, body: dict[str, Any], where: str) -> Any:
        """Read the result of a call, over as many connections as it takes."""
        headers = {"X-Session-ID": self._id, "Accept": "text/event-stream", "Content-Type": "application/json"}
        retries = Retries(PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, RETRIES)
        while True:
            pieces: list[str] = []
            try:
                async with self._client.stream("POST", path, content=write(body), headers=headers) as response:
                    if not response.is_success:
                        await response.aread()
                        if response.status_code in GONE:
                            reason = f"the server has ended it ({response.status_code})"
                            raise ServiceError(f"{where} found no session: {reason}")
                        raise self._access.refusal(where, response)
                    async for event in read_events(response.aiter_bytes()):
                        if event.kind == "task_id":
                            body = {**body, "task_id": event.data.strip()}
                        elif event.kind == "error":
                            raise self._error_of(where, event.data, is_resumed=retries.failures > 0)
                        elif event.kind in ("chunk", "end"):
                            pieces.append(event.data)
                        if event.kind == "end":
                            return read("".join(pieces))
                problem, is_unsent = "the stream ended early", False
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}".rstrip(": ")
                is_unsent = isinstance(error, httpx.ConnectError)
            except TooLong:
                raise ServiceError(f"{where} came to more than {MAX_BYTES >> 20} MiB") from None
            except ValueError:
                raise ServiceError(f"{where} came to no JSON: {''.join(pieces)[:100]!r}") from None
            pause = retries.pause()
            if pause is None or ("task_id" not in body and not is_unsent):
                raise ServiceError(f"{where} was lost: {problem}")
            await asyncio.sleep(pause)

    def _error_of(self, where: str, words: str, *, is_resumed: bool) -> Exception:
        if is_resumed and words == "unknown task_id":
            return ServiceError(f"{where} was lost: the server knows it no more")
        return EnvError(f"{where} raised: {self._access.words(words)}")

    async def _ping(self) -> None:
        """Keep the session alive; servers end one that is silent for some minutes."""
        failures = 0
        while True:
            await asyncio.sleep(self._ping_seconds)
            try:
                response = await self._client.post("/ping", headers={"X-Session-ID": self._id})
                problem = "" if response.is_success else f"a ping is answered with {response.status_code}"
                is_gone = response.status_code in GONE
            except httpx.HTTPError as error:
                problem, is_gone = f"a ping failed: {type(error).__name__}: {error}", False
            failures = failures + 1 if problem else 0
            if is_gone or failures >= MAX_FAILED_PINGS:
                self._loss = problem
                return


async def _as_chunks(content: bytes) -> AsyncIterator[bytes]:
    yield content
