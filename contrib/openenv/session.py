"""One session at an OpenEnv server: a WebSocket, over which requests and responses alternate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contrib.apis.mcp.pages import all_pages
from contrib.common.http_clients import proxy_of
from contrib.common.json_text import decoded, is_set, portable, read, write
from contrib.openenv.description import VERSIONS
from forge_env.core.errors import EnvError, ServiceError

CONNECT_SECONDS = 30.0
CLOSE_SECONDS = 2.0
MAX_FRAME = 100 * 2**20
"""Bytes of an answer, which may hold pictures."""


class NoSlot(Exception):
    """The server has as many sessions as it takes."""


class BadAction(Exception):
    """The server refused an action for its form; the text is for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    observation: Mapping[str, Any]
    reward: Any
    done: bool
    metadata: Mapping[str, Any]


class Session:
    """A session. `Session.connect` opens one; if a request was cancelled, its session can only be closed."""

    def __init__(self, url: str, socket: Any) -> None:
        self._url = url
        self._socket = socket

    @classmethod
    async def connect(cls, url: str, headers: Mapping[str, str]) -> Session:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake

        address = f"ws{url.removeprefix('http')}/ws"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await connect(
                    address,
                    additional_headers=dict(headers),
                    max_size=MAX_FRAME,
                    close_timeout=CLOSE_SECONDS,
                    open_timeout=None,
                    proxy=proxy_of(url),
                )
        except (InvalidHandshake, ImportError) as error:  # a SOCKS proxy needs a package
            raise ServiceError(f"{url} opens no session of OpenEnv ({VERSIONS}): {error}") from None
        except TimeoutError:
            raise ServiceError(f"the OpenEnv server {url} did not answer within {CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise ServiceError(f"no OpenEnv server answers at {url}: {error}") from None
        return cls(url, socket)

    async def reset(self, data: Mapping[str, Any]) -> Observed:
        return self._result(await self._request("reset", data, "observation"))

    async def step(self, action: Mapping[str, Any]) -> Observed:
        return self._result(await self._request("step", action, "observation"))

    async def tools(self) -> list[dict[str, Any]] | None:
        are_listed = True

        async def page(cursor: str | None) -> tuple[list[tuple[str, dict[str, Any]]], str | None]:
            nonlocal are_listed
            params = {} if cursor is None else {"cursor": cursor}
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
            result = (await self._request("mcp", request, "mcp")).get("result")
            if not isinstance(result, dict) or not isinstance(result.get("tools"), list):
                are_listed = False
                return [], None
            tools = [(str(tool.get("name")), tool) for tool in result["tools"] if isinstance(tool, dict)]
            following = result.get("nextCursor")
            return tools, following if isinstance(following, str) else None

        tools = await all_pages(page, f"the OpenEnv server {self._url}")
        return tools if are_listed else None

    async def close(self) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.send('{"type": "close"}')
        await self._socket.close()

    async def _request(self, kind: str, data: Mapping[str, Any], expected: str) -> Mapping[str, Any]:
        from websockets.exceptions import ConnectionClosed

        try:
            # A server that refuses a session says so and hangs up, maybe before the request is sent.
            with contextlib.suppress(ConnectionClosed):
                await self._socket.send(write({"type": kind, "data": portable(data)}))
            text = await self._socket.recv()
        except (ConnectionClosed, OSError) as error:
            raise ServiceError(f"the connection to the OpenEnv server {self._url} was lost: {error}") from None
        try:
            frame = read(text if isinstance(text, str) else decoded(text))
        except (ValueError, RecursionError):
            frame = None
        answer = frame.get("data") if isinstance(frame, dict) else None
        if not isinstance(frame, dict) or not isinstance(answer, dict) or frame.get("type") not in (expected, "error"):
            raise self._unknown(f"{kind!r} with {text!r:.80}")
        if frame["type"] == "error":
            self._raise(answer)
        return answer

    def _raise(self, answer: Mapping[str, Any]) -> None:
        code, message = answer.get("code"), str(answer.get("message"))
        if code == "CAPACITY_REACHED":
            raise NoSlot(message)
        if code == "VALIDATION_ERROR":
            raise BadAction(_problems(answer.get("errors")) or message)
        if code in ("EXECUTION_ERROR", "FACTORY_ERROR"):
            raise EnvError(f"the environment at {self._url} raised: {message}")
        raise ServiceError(f"the OpenEnv server {self._url} failed with {code}: {message}")

    def _unknown(self, what: str) -> ServiceError:
        return ServiceError(f"the OpenEnv server {self._url} answered {what}, which is not the protocol of {VERSIONS}")

    def _result(self, answer: Mapping[str, Any]) -> Observed:
        observation, metadata = answer.get("observation"), answer.get("metadata")
        if not isinstance(observation, dict):
            raise self._unknown("without an observation")
        metadata = metadata or observation.get("metadata")
        return Observed(
            observation={name: value for name, value in observation.items() if name != "metadata"},
            reward=answer.get("reward"),
            done=is_set(answer.get("done")),
            metadata=metadata if isinstance(metadata, dict) else {},
        )


def _problems(errors: Any) -> str:
    problems = [
        f"{'.'.join(map(str, error.get('loc', ()))) or 'action'}: {error.get('msg')}"
        for error in (errors if isinstance(errors, list) else ())
        if isinstance(error, dict)
    ]
    return "; ".join(problems[:5])
