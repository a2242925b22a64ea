"""How a server is reached: its address, the headers with secrets, and what its refusals mean."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from contrib.apis.http.credentials import Credentials, secret_from_env
from forge_env.core.errors import EnvError, ForgeError, ServiceError, UserError

API_KEY_ENV = "ORS_API_KEY"
TRANSIENT = frozenset({429, 502, 503, 504})
GONE = frozenset({404, 410})
_SHOWN = 500  # characters of a server's own words


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """An address, and the credentials of the user for it. It follows no redirect, so they go nowhere else."""

    url: str
    credentials: Credentials
    key_env: str

    @property
    def headers(self) -> dict[str, str]:
        return {"User-Agent": "forge-env", "Accept-Encoding": "identity", **self.credentials.headers}

    def refusal(self, what: str, response: httpx.Response) -> ForgeError:
        reason = f"{self.url} answered {what} with {response.status_code}: {self.words(_detail(response))}"
        if response.status_code in (401, 403):
            key = f"Put a valid API key into the environment variable {self.key_env}"
            return UserError(f"{reason}. {key}, or name another one as api_key_env")
        return EnvError(reason) if response.status_code == 500 else ServiceError(reason)

    def words(self, text: str) -> str:
        """Return what a server wrote, as one line without the user's secrets."""
        return self.credentials.redact(" ".join(text.split()))[:_SHOWN]


def access_of(url: str, *, api_key_env: str, secrets: Sequence[str]) -> Access:
    """Read the API key and the secrets from environment variables; `API_KEY_ENV` may be unset."""
    headers: dict[str, str] = {}
    if api_key_env and (api_key_env != API_KEY_ENV or os.environ.get(API_KEY_ENV)):
        headers["X-API-Key"] = secret_from_env(api_key_env)
    values = {name: secret_from_env(name) for name in secrets}
    if values:
        payload = json.dumps({name: {"value": value} for name, value in values.items()})
        headers["X-Secrets"] = base64.b64encode(payload.encode()).decode()
    hidden = frozenset({*headers.values(), *values.values()})
    credentials = Credentials(headers=headers, secrets=hidden)
    return Access(url=url, credentials=credentials, key_env=api_key_env or API_KEY_ENV)


def checked_url(text: str) -> str:
    url = text.rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not re.fullmatch(r"[!-~]+", url):
        raise UserError(f"ors:{text} names no server: write its address, as ors:http://127.0.0.1:8080")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UserError(
            "the address of an ORS server holds a user, a query or a fragment: write the scheme, the host and the port "
            f"alone, and put the API key into the environment variable {API_KEY_ENV}"
        )
    return url


def _detail(response: httpx.Response) -> str:
    try:
        data: Any = response.json()
    except ValueError:
        return response.text or response.reason_phrase
    detail = data.get("detail", data) if isinstance(data, dict) else data
    return detail if isinstance(detail, str) else json.dumps(detail)
