"""The tools of an OpenAPI document in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contrib.apis.http.client import ApiClient
from contrib.apis.openapi.tools import OpenApi
from forge_env.core.tools import Tool


async def openapi_tools(
    document: str | Mapping[str, Any],
    *,
    client: ApiClient,
    headers_from_env: Mapping[str, str] = {},
    base_url: str = "",
) -> list[Tool]:
    api = await OpenApi.load(document, client=client, base_url=base_url, hidden_headers=list(headers_from_env))
    return api.tools(api.connect(client, headers_from_env=headers_from_env))
