"""What an OpenEnv server says about itself over HTTP: the schema of its actions, its name, its tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from contrib.common.http_clients import connection
from forge_env.core.errors import ServiceError, UserError

HTTP_SECONDS = 30.0
VERSIONS = "openenv 0.3 to 0.10"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    action: Mapping[str, Any]
    """JSON schema of an action."""
    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A split of the tasks that a server lists. Example: ``Split(env="wordle", name="eval", kind="test")``"""

    env: str
    name: str
    kind: str


def base_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    http = f"{scheme.replace('ws', 'http', 1) if scheme in ('ws', 'wss') else scheme}://{rest}".rstrip("/")
    try:
        parts = urlsplit(http)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.query or parts.fragment:
        raise UserError(
            f"{url!r} is no URL of an OpenEnv server; write its base, such as openenv:http://127.0.0.1:8000"
        )
    return http


def headers_of(token_env: str) -> dict[str, str]:
    """Return the headers of every request: the token of an environment variable, if one is named."""
    if not token_env:
        return {}
    token = os.environ.get(token_env, "")
    if not token:
        raise UserError(f"the option token_env names the environment variable {token_env!r}, which is not set")
    return {"Authorization": f"Bearer {token}"}


class HttpApi:
    """The HTTP side of one server; its requests block. Use it as a context manager."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, headers=dict(headers), timeout=HTTP_SECONDS, **connection(url))

    def __enter__(self) -> HttpApi:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def describe(self) -> Description:
        schemas = self._get("/schema")
        action = schemas.get("action") if isinstance(schemas, dict) else None
        if not isinstance(action, dict) or not isinstance(action.get("properties"), dict):
            raise self._unknown("/schema", "no schema of an action")
        metadata = self._get("/metadata", optional=True)
        metadata = metadata if isinstance(metadata, dict) else {}
        name, version = str(metadata.get("name") or "OpenEnv"), str(metadata.get("version") or "")
        return Description(action=action, name=name, version=version)

    def splits(self) -> list[Split]:
        names = self._get("/list_environments", optional=True)
        result: list[Split] = []
        for env in names if isinstance(names, list) else ():
            splits = self._get(f"/{quote(str(env), safe='')}/splits", optional=True)
            for split in splits if isinstance(splits, list) else ():
                if isinstance(split, dict) and split.get("name"):
                    result.append(Split(env=str(env), name=str(split["name"]), kind=str(split.get("type", ""))))
        return result

    def num_tasks(self, split: Split) -> int:
        answer = self._post(f"/{quote(split.env, safe='')}/num_tasks", {"split": split.name})
        return int(answer["num_tasks"])

    def tasks(self, split: Split, indices: list[int]) -> Iterator[Any]:
        for index in indices:
            yield self._post(f"/{quote(split.env, safe='')}/task", {"split": split.name, "index": index})["task"]

    def _get(self, path: str, *, optional: bool = False) -> Any:
        with _answers(self.url):
            response = self._client.get(path)
        if response.status_code != 200:
            if optional:
                return None
            raise self._unknown(path, f"HTTP {response.status_code}")
        return _json(response)

    def _unknown(self, path: str, what: str) -> UserError:
        return UserError(
            f"{self.url} is no OpenEnv server of a version that is known here ({VERSIONS}): "
            f"GET {self.url}{path} gives {what}"
        )

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        with _answers(self.url):
            response = self._client.post(path, json=body)
        answer = _json(response)
        if response.status_code != 200 or not isinstance(answer, dict):
            raise ServiceError(f"the OpenEnv server {self.url} failed: POST {path} gives HTTP {response.status_code}")
        return answer


@contextmanager
def _answers(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise ServiceError(f"no OpenEnv server answers at {url}: {reason}; start it, or correct the URL") from None


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
