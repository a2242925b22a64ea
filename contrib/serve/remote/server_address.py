"""The address of an environment's server, as a name of an environment, and questions that need no session."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

from contrib.common.http_clients import connection
from contrib.serve.remote import wire
from contrib.serve.remote.wire import About, Answer
from forge_env.core.errors import ServiceError, UserError, nearest

TOKEN_VARIABLE = "FORGE_ENV_TOKEN"
ABOUT_SECONDS = 10.0
_SPOKEN = str(wire.PROTOCOL)
QUESTION_SECONDS = 30.0
"""Silence after which a question is given up: a server that works on it gives a sign of life more often."""
_EXAMPLE = "http://host:8000, or http://host:8000?token_env=NAME for a token in another variable than FORGE_ENV_TOKEN"


class OtherVersion(ServiceError):
    """The server speaks another version of the protocol, or is not a server of an environment."""


class Refused(ServiceError):
    """The server has refused a request; asking again will not help."""


class Busy(Exception):
    """The server, or a proxy before it, cannot answer now."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, and which environment variable holds its token; no secret is in it."""

    url: str
    token_env: str = TOKEN_VARIABLE

    @classmethod
    def parse(cls, name: str) -> ServerAddress:
        """Read a name such as "http://host:8000?token_env=SHOP_TOKEN"."""
        try:
            parts = urlsplit(name)
            is_plain = parts.hostname and not parts.fragment and parts.port != 0
        except ValueError:
            raise UserError(f"{name!r} is no address of a server: write it as {_EXAMPLE}") from None
        if "@" in parts.netloc:  # not shown: it may be a secret
            raise UserError(f"the address of {parts.hostname} holds a user or password: write it as {_EXAMPLE}")
        if not is_plain:
            raise UserError(f"{name!r} is no address of a server: write it as {_EXAMPLE}")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        for key in query.keys() - {"token_env"}:
            raise UserError(f"the address {name!r} has the setting {key!r}. {nearest(key, ['token_env'])}")
        url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        return cls(url, query.get("token_env") or TOKEN_VARIABLE)

    @property
    def headers(self) -> dict[str, str]:
        token = os.environ.get(self.token_env, "").strip()
        if not token:
            raise UserError(
                f"the server {self.url} needs its token in the environment variable {self.token_env}, which is not "
                "set: forge-env serve prints it"
            )
        if not (token.isascii() and token.isprintable()):
            raise UserError(f"the environment variable {self.token_env} holds what no token may have (it is not shown)")
        return {"authorization": f"Bearer {token}", wire.HEADER: str(wire.PROTOCOL)}

    def about(self) -> About:
        try:
            with _client(self.url, ABOUT_SECONDS) as client:
                response = client.get(f"{self.url}{wire.PATH}", headers=self.headers)
            _check(self.url, response)
            return About(**response.json())
        except (httpx.TransportError, Busy) as error:
            raise UserError(
                f"no environment answers at {self.url} ({describe(error)}): start its server with forge-env serve "
                "--env NAME, and give the URL that it prints"
            ) from None
        except (ServiceError, TypeError, ValueError) as error:
            raise UserError(str(error)) from None

    def ask(self, question: str, **request: Any) -> Any:
        """Ask a question that needs no session, such as "tasks"; it waits as long as the server works on it."""
        try:
            with _client(self.url, QUESTION_SECONDS) as client:
                body = json.dumps(request)  # ASCII: a message may hold lone surrogates, which httpx cannot send
                response = client.post(f"{self.url}{wire.PATH}/{question}", headers=self.headers, content=body)
            _check(self.url, response)
            return result_of(Answer.load(response.content))
        except (httpx.TransportError, Busy, ValueError) as error:
            raise ServiceError(f"the server {self.url} did not answer {question}: {describe(error)}") from None


def check_response(url: str, status: int, version: str, content: bytes) -> None:
    if status == 200 and version == _SPOKEN:
        return
    if status in (408, 429, 502, 503, 504):
        raise Busy(_reason(status, content))
    if not version:
        raise OtherVersion(f"{url} is no server of a forge_env environment: it answers {_reason(status, content)}")
    if version != _SPOKEN:
        raise OtherVersion(
            f"the server {url} speaks version {version:.20} of the protocol of forge_env, and this client version "
            f"{_SPOKEN}: install the same forge_env on both sides"
        )
    raise Refused(f"the server {url} refused a request: {_reason(status, content)}")


def result_of(answer: Answer) -> Any:
    if answer.fault is not None:
        raise wire.fault_error(answer.fault)
    return answer.result


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _check(url: str, response: httpx.Response) -> None:
    check_response(url, response.status_code, response.headers.get(wire.HEADER, ""), response.content)


def _reason(status: int, content: bytes) -> str:
    """Return what a response without an answer says, in a few words."""
    try:
        return f"{status} {json.loads(content)['error']!s:.300}"
    except (ValueError, KeyError, TypeError):
        return str(status)


def _client(url: str, seconds: float) -> httpx.Client:
    timeout = httpx.Timeout(seconds, connect=ABOUT_SECONDS)
    return httpx.Client(timeout=timeout, **connection(url))
