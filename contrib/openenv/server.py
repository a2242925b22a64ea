"""The OpenEnv server that the episodes of a process use: opens their sessions, and waits if all are taken."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from contrib.openenv.actions import KINDS, Actions, make_actions, takes_mcp
from contrib.openenv.container import Container, is_image, run_options, start_container
from contrib.openenv.description import Description, HttpApi, base_url, headers_of
from contrib.openenv.session import NoSlot, Observed, Session
from forge_env.core.errors import ServiceError, UserError
from forge_env.utils.deadlines import queued

SLOT_SECONDS = 600.0
"""How long an episode waits for a session at a server that takes no more."""
_POLL_SECONDS = 0.5  # a slot may become free without our knowledge: other clients use the server too


@dataclass(slots=True, kw_only=True)
class Opened:
    url: str
    session: Session
    first: Observed
    actions: Actions
    description: Description


class Server:
    """Opens sessions at one server. Belongs to one event loop.

    The source is its URL, or the image of a container, which is started, again if it has ended.
    """

    def __init__(
        self, source: str, *, headers: Mapping[str, str], actions: str, port: int, options: Sequence[str]
    ) -> None:
        self._source, self._headers = source, headers
        self._kind, self._port, self._options = actions, port, options
        self._starting = asyncio.Lock()
        self._url = "" if is_image(source) else base_url(source)
        self._container: Container | None = None
        self._description: Description | None = None
        self._mcp_tools: list[dict[str, Any]] | None = None
        self._actions: Actions | None = None
        self._release = asyncio.Condition()

    async def start(self) -> Description:
        """Start the container of an image, unless it runs, and ask the server what its environment is."""
        async with self._starting:
            if is_image(self._source) and (self._container is None or self._container.has_ended):
                await self._stop()
                self._container = await start_container(self._source, port=self._port, options=self._options)
                self._url = self._container.url
            if self._description is None:
                self._description = await asyncio.to_thread(_describe, self._url, self._headers)
            return self._description

    async def open(self, reset: Mapping[str, Any]) -> Opened:
        async with queued():
            description = await self.start()
        deadline = time.monotonic() + SLOT_SECONDS
        while True:
            session = await Session.connect(self._url, self._headers)
            try:
                first = await session.reset(reset)
                actions = await self._actions_of(session, description)
                return Opened(url=self._url, session=session, first=first, actions=actions, description=description)
            except NoSlot as full:
                await self.release(session)
                if time.monotonic() > deadline:
                    raise ServiceError(
                        f"the OpenEnv server {self._url} took no session within {SLOT_SECONDS:g} s: {full}"
                    ) from None
                await self._wait()
            except BaseException:
                await self.release(session)
                raise

    async def release(self, session: Session) -> None:
        """Close a session, and let an episode that waits try again."""
        try:
            await session.close()
        finally:
            async with self._release:
                self._release.notify()

    async def close(self) -> None:
        async with self._starting:
            await self._stop()

    async def _stop(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            await container.close()

    async def _wait(self) -> None:
        try:
            async with queued(), self._release, asyncio.timeout(_POLL_SECONDS):
                await self._release.wait()
        except TimeoutError:
            pass

    async def _actions_of(self, session: Session, description: Description) -> Actions:
        """How the model acts. Asked for in every session, as tools may depend on the episode."""
        tools = await session.tools() if takes_mcp(description.action) else None
        if self._actions is None or tools != self._mcp_tools:
            self._mcp_tools = tools
            self._actions = make_actions(description.action, tools, self._kind, self._url)
        return self._actions


def _describe(url: str, headers: Mapping[str, str]) -> Description:
    with HttpApi(url, headers) as api:
        return api.describe()


def target_of(source: str) -> str:
    """Return the target of the `open_server` of one source, which every process can load."""
    return f"{__name__}:open_{source.encode().hex()}"


def __getattr__(name: str) -> Callable[..., AbstractAsyncContextManager[Server]]:
    try:
        source = bytes.fromhex(name.removeprefix("open_")).decode()
    except ValueError:
        raise AttributeError(f"module {__name__} has no attribute {name}") from None

    def open_server(
        actions: str = "auto", token_env: str = "", port: int = 8000, docker_run: str = ""
    ) -> AbstractAsyncContextManager[Server]:
        return _open(source, actions=actions, token_env=token_env, port=port, docker_run=docker_run)

    open_server.__doc__ = _DOC
    return open_server


_DOC = """Open what the episodes share: ask the server what its environment is, and start the container of an image.

Args:
    actions: "auto", "tool" or "text", see `contrib.openenv.actions.make_actions`.
    token_env: the environment variable with the token that the server asks for, if it does.
    port: of the server in the container of an image.
    docker_run: further options of `docker run` for an image, "--memory 2g" for example.

Raises:
    UserError: for another value, a variable that is not set, when websockets is not installed, and for a server that is
        none of OpenEnv.
    ServiceError: when no server answers.
"""


@asynccontextmanager
async def _open(source: str, *, actions: str, token_env: str, port: int, docker_run: str) -> AsyncIterator[Server]:
    if importlib.util.find_spec("websockets") is None:
        raise UserError("OpenEnv servers need the package websockets: pip install 'forge-env[tools]'")
    if actions not in KINDS:
        raise UserError(f"the option actions is {actions!r}; it is {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    server = Server(source, headers=headers_of(token_env), actions=actions, port=port, options=run_options(docker_run))
    try:
        await server.start()
        yield server
    finally:
        await server.close()
