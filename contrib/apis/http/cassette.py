"""Cassettes: recorded HTTP responses, for replay without the network.

A cassette is a file of JSON lines. Each line is one response; they are in the order of their arrival. Responses are
found by method, URL and body of the request. Equal requests of a client get them in that order, and after the last one
the last one again. Each client that `ApiClient.with_headers` made starts at the first. Credentials are not part of the
recorded request, and are redacted from the recorded response.

Modes: "replay" does not use the network. "record" starts a new file. "auto" replays what is recorded, and appends the
rest. "off" neither records nor replays. Several processes may share a file in all modes but "record".
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from contrib.apis.http.credentials import EXTENSION, Credentials
from forge_env.core.errors import ServiceError, UserError, nearest

MODES = ("off", "record", "replay", "auto")
CURSOR = "forge_env.cursor"
"""Extension of a request: how many responses its client has received, by key."""
_KEPT_HEADERS = ("content-type", "location", "retry-after", "retry-after-ms")
_COMPARED = 200  # keys that a missing key is compared with, since comparing is slow


class NotRecorded(ServiceError):
    """A replayed cassette has no response to a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    method: str
    url: str
    request_sha256: str
    """Digest of the request's body; empty for no body."""
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    """Text, or base64 where the body is not UTF-8."""
    is_base64: bool = False

    @property
    def key(self) -> str:
        return f"{self.method} {self.url} {self.request_sha256}".strip()

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.body) if self.is_base64 else self.body.encode()


class Cassette:
    def __init__(self, path: str | Path, mode: str) -> None:
        if mode not in MODES:
            raise UserError(f"the cassette mode {mode!r} is unknown. {nearest(mode, MODES)}")
        if not str(path):
            raise UserError(f"the cassette mode {mode!r} needs a file: name it as cassette")
        self.path = Path(path)
        self.mode = mode
        self._responses: dict[str, list[Recording]] = {}
        if mode == "record":
            self._write("", mode="w")
        elif self.path.exists() or mode == "replay":
            self._load()

    def find(self, key: str, cursor: dict[str, int]) -> Recording | None:
        """The next response to a request; None if nothing is to be replayed."""
        responses = self._responses.get(key)
        if not responses or self.mode == "record":
            return None
        position = cursor.get(key, 0)
        cursor[key] = position + 1
        return responses[min(position, len(responses) - 1)]

    def add(self, recording: Recording, cursor: dict[str, int]) -> None:
        self._responses.setdefault(recording.key, []).append(recording)
        cursor[recording.key] = cursor.get(recording.key, 0) + 1
        self._write(json.dumps(asdict(recording), ensure_ascii=False) + "\n", mode="a")

    def not_recorded(self, key: str) -> NotRecorded:
        close = difflib.get_close_matches(key, islice(self._responses, _COMPARED), n=1, cutoff=0.0)
        hint = f"The nearest that is recorded: {close[0]}." if close else "It is empty."
        return NotRecorded(
            f"the cassette {self.path} has no answer to {key}. {hint} Record it with the cassette mode 'auto'."
        )

    def _load(self) -> None:
        try:
            lines = self.path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"the cassette {self.path} cannot be read: {error}") from None
        for number, line in enumerate(lines, start=1):
            if line.strip():
                recording = _recording_of(line, f"line {number} of the cassette {self.path}")
                self._responses.setdefault(recording.key, []).append(recording)

    def _write(self, text: str, *, mode: str) -> None:
        try:
            # A single write to a file opened for appending, so that lines of several processes do not mix.
            with self.path.open(f"{mode}b", buffering=0) as file:
                file.write(text.encode())
        except OSError as error:
            raise UserError(f"the cassette {self.path} cannot be written: {error.strerror}") from None


class CassetteTransport(httpx.AsyncBaseTransport):
    """Answers from a cassette, or asks the transport beneath and records what it answers."""

    def __init__(self, inner: httpx.AsyncBaseTransport, cassette: Cassette) -> None:
        self._inner = inner
        self._cassette = cassette

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        digest = hashlib.sha256(body).hexdigest() if body else ""
        # A redirect of the service's may have a credential in its URL.
        url = _credentials(request).redact(str(request.url))
        key = f"{request.method} {url} {digest}".strip()
        cursor = request.extensions.get(CURSOR, {})
        recording = self._cassette.find(key, cursor)
        if recording is not None:
            return httpx.Response(
                recording.status, headers=recording.headers, stream=httpx.ByteStream(recording.content)
            )
        if self._cassette.mode == "replay":
            raise self._cassette.not_recorded(key)
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Tape(response, request, digest, self._cassette)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Tape(httpx.AsyncByteStream):
    """Passes a body on, and records it when its reader stops; a body that broke off is not recorded."""

    def __init__(self, response: httpx.Response, request: httpx.Request, digest: str, cassette: Cassette) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._stream = response.stream
        self._response, self._request, self._digest, self._cassette = response, request, digest, cassette
        self._body = bytearray()
        self._is_whole = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._is_whole = False
        async for chunk in self._stream:
            self._body += chunk
            self._is_whole = True
            yield chunk
            self._is_whole = False
        self._is_whole = True

    async def aclose(self) -> None:
        await self._stream.aclose()
        if self._is_whole:
            self._is_whole = False
            self._cassette.add(self._recording(), self._request.extensions.get(CURSOR, {}))

    def _recording(self) -> Recording:
        credentials = _credentials(self._request)
        content = credentials.redact_bytes(bytes(self._body))
        try:
            body, is_base64 = content.decode(), False
        except UnicodeDecodeError:
            body, is_base64 = base64.b64encode(content).decode(), True
        headers = self._response.headers
        return Recording(
            method=self._request.method,
            url=credentials.redact(str(self._request.url)),
            request_sha256=self._digest,
            status=self._response.status_code,
            headers={name: credentials.redact(headers[name]) for name in _KEPT_HEADERS if name in headers},
            body=body,
            is_base64=is_base64,
        )


def _credentials(request: httpx.Request) -> Credentials:
    credentials = request.extensions.get(EXTENSION)
    return credentials if isinstance(credentials, Credentials) else Credentials()


def _recording_of(line: str, where: str) -> Recording:
    try:
        fields: dict[str, Any] = json.loads(line)
        recording = Recording(**fields)
        _ = recording.content
        httpx.Response(recording.status, headers=recording.headers)
    except (ValueError, TypeError, AttributeError, RecursionError):
        remedy = "mend it, or record it anew with the cassette mode 'record'"
        raise UserError(f"{where} is no recording: {remedy}") from None
    return recording
