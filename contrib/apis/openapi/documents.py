"""Reads OpenAPI documents: from a URL, a file or a dict, JSON or YAML, into plain JSON data of a bounded size."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contrib.apis.http.client import ApiClient, is_url
from forge_env.core.errors import ServiceError, UserError
from forge_env.utils.yaml_text import read_yaml

MAX_NODES, MAX_DEPTH = 1_000_000, 150
_MAX_BYTES = 32 * 1024 * 1024


async def read_document(source: str | Mapping[str, Any], client: ApiClient) -> dict[str, Any]:
    if isinstance(source, Mapping):
        return plain(source, "the OpenAPI document")
    text = await _fetch(source, client) if is_url(source) else _file(source)
    return parse(text, source)


def parse(text: str, source: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except RecursionError:
        raise UserError(f"the OpenAPI document {source} is nested too deeply") from None
    except ValueError:
        data = _yaml(text, source)
    return plain(data, f"the OpenAPI document {source}")


def plain(data: Any, where: str) -> dict[str, Any]:
    """Copy data to plain JSON with text keys and without shared parts, bounded in size and depth."""
    if not isinstance(data, Mapping):
        raise UserError(f"{where} is no object but {type(data).__name__}: it begins with 'openapi: 3.1.0' or '{{'")
    return _Copy(where).of(data, 0)


class _Copy:
    def __init__(self, where: str) -> None:
        self._where = where
        self._nodes = 0

    def of(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise UserError(f"{self._where} has more than {MAX_NODES} values, or more than {MAX_DEPTH} levels")
        if isinstance(value, Mapping):
            return {_key(key): self.of(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set)):
            return [self.of(item, depth + 1) for item in value]
        if value is None or isinstance(value, (str, bool, int)):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return int(value) if value.is_integer() and abs(value) < 2**53 else value  # 100.0 is 100 in JSON
        return str(value)  # a date of YAML, for example


def _key(key: Any) -> str:
    # YAML reads the keys true and 404 as a boolean and a number.
    return str(key).lower() if isinstance(key, bool) else str(key)


def _yaml(text: str, source: str) -> Any:
    import yaml

    try:
        return read_yaml(text)
    except RecursionError:
        raise UserError(f"the OpenAPI document {source} is nested too deeply") from None
    # Beside YAMLError, the constructors of dates and numbers raise any of these.
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"the OpenAPI document {source} is neither JSON nor YAML: {reason}") from None


def _file(source: str) -> str:
    try:
        path = Path(source)
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(f"the OpenAPI document {source} is bigger than {_MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"the OpenAPI document {source!r} cannot be read: {reason}") from None


async def _fetch(url: str, client: ApiClient) -> str:
    """Fetch a document over the connections of a client, without credentials."""
    base, separator, query = url.partition("?")
    try:
        response = await client.at(base, max_bytes=_MAX_BYTES).request("GET", separator + query)
    except ServiceError as error:
        raise UserError(f"the OpenAPI document {url} cannot be fetched: {error}") from None
    if response.status != 200:
        raise UserError(f"the OpenAPI document {url} cannot be fetched: {response.status} {response.reason}")
    if response.truncated:
        raise UserError(f"the OpenAPI document {url} is bigger than {_MAX_BYTES} bytes")
    return response.text
