"""Credentials of services: read from environment variables, and redacted from all responses.

The innermost transport adds credentials, so they are not in the requests that httpx logs, that its exceptions carry and
that a cassette records. Redaction covers a value as it is, and as URLs, JSON and base64 write it. Not covered: a
service that returns it in other forms, such as reversed.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus

import httpx

from forge_env.core.errors import UserError

REDACTED = "[redacted]"
EXTENSION = "forge_env.credentials"
"""Extension of a request that carries its credentials until they are applied."""

MIN_LENGTH = 4  # a shorter value cannot be told from ordinary text, so redacting it would garble every answer
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True, kw_only=True, repr=False)
class Credentials:
    """Headers, query parameters and cookies that are sent with every request; never shown and never pickled."""

    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    cookies: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()
    """Texts that are redacted."""

    def __repr__(self) -> str:
        return f"Credentials({', '.join([*self.headers, *self.query, *self.cookies])})"

    def __reduce__(self) -> Any:
        raise TypeError("credentials are not pickled: pickle the names of their environment variables")

    def with_headers(self, headers: Mapping[str, str]) -> Credentials:
        """These credentials and further headers; the headers' values are secrets as well."""
        for name, value in headers.items():
            _check(value, f"the header {name}")
        values = {part for value in headers.values() for part in (value, *value.split()[1:]) if len(part) >= MIN_LENGTH}
        return replace(self, headers={**self.headers, **headers}, secrets=self.secrets | values)

    def join(self, other: Credentials) -> Credentials:
        return Credentials(
            headers={**self.headers, **other.headers},
            query={**self.query, **other.query},
            cookies={**self.cookies, **other.cookies},
            secrets=self.secrets | other.secrets,
        )

    @property
    def longest(self) -> int:
        """Bytes of the longest text that is redacted; a body is read further by this number than it is shown."""
        return max((len(text.encode()) for text in self._encoded_secrets), default=0)

    def redact(self, text: str) -> str:
        for secret in self._encoded_secrets:
            text = text.replace(secret, REDACTED)
        return text

    def redact_bytes(self, data: bytes) -> bytes:
        for secret in self._encoded_secrets:
            data = data.replace(secret.encode(), REDACTED.encode())
        return data

    def apply(self, request: httpx.Request) -> httpx.Request:
        headers = request.headers.copy()
        headers.update(self.headers)
        if self.cookies:
            pairs = [headers["Cookie"]] if "Cookie" in headers else []
            headers["Cookie"] = "; ".join([*pairs, *(f"{name}={value}" for name, value in self.cookies.items())])
        url = request.url.copy_merge_params(dict(self.query)) if self.query else request.url
        extensions = dict(request.extensions)
        return httpx.Request(request.method, url, headers=headers, stream=request.stream, extensions=extensions)

    @cached_property
    def _encoded_secrets(self) -> tuple[str, ...]:
        """The secrets in all encodings, the longest first, as one may be a part of another."""
        encodings = {encoding for secret in self.secrets for encoding in _encodings(secret)}
        return tuple(sorted(encodings, key=lambda encoding: (-len(encoding), encoding)))


class AuthTransport(httpx.AsyncBaseTransport):
    """Adds the credentials that a request carries in its extensions; wraps the transport of the network."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        credentials = request.extensions.get(EXTENSION)
        return await self._inner.handle_async_request(credentials.apply(request) if credentials else request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def headers_from_env(headers: Mapping[str, str]) -> Credentials:
    """The credentials of headers: name -> environment variable, or a text with variables such as "Bearer ${TOKEN}"."""
    values = {name: value_from_env(template) for name, template in headers.items()}
    secrets = {secret for _, part in values.values() for secret in part}
    return Credentials(headers={name: value for name, (value, _) in values.items()}, secrets=frozenset(secrets))


def value_from_env(template: str) -> tuple[str, set[str]]:
    if _NAME.fullmatch(template):
        template = "${" + template + "}"
    names = [in_braces or plain for in_braces, plain in _REFERENCE.findall(template)]
    if not names:
        raise UserError(
            "a credential in the settings names no environment variable: write NAME, or 'Bearer ${NAME}', and put the "
            "secret itself into the variable"
        )
    values = {name: secret_from_env(name) for name in names}
    value = _REFERENCE.sub(lambda match: values[match[1] or match[2]], template)
    return value, {value, *values.values()}


def secret_from_env(name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise UserError(f"the environment variable {name}, which holds a credential, is not set")
    if len(value) < MIN_LENGTH:
        raise UserError(f"the environment variable {name} holds fewer than {MIN_LENGTH} characters: no credential")
    _check(value, f"the environment variable {name}")
    return value


def _check(value: str, what: str) -> None:
    if not (value.isascii() and value.isprintable()):
        raise UserError(f"{what} holds characters that no HTTP header may have (its value is not shown)")


def _encodings(secret: str) -> Iterable[str]:
    yield secret
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield base64.b64encode(secret.encode()).decode().rstrip("=")
