"""What all episodes of tool_api in a process share: the sources of its tools, and the shop."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from contrib.apis.http.client import ApiClient
from contrib.apis.http.pool import ApiSettings
from contrib.apis.openapi.tools import OpenApi
from contrib.apis.shop.operations import OPERATIONS
from contrib.apis.shop.server import ShopServer
from contrib.apis.shop.tasks import shop_of
from contrib.apis.sources import Sources, open_sources
from contrib.apis.tasks import SHOP, checked_sources, shop_operations
from forge_env.core.errors import EnvError, ServiceError, UserError
from forge_env.core.tools import Tool
from forge_env.core.types import Task
from forge_env.tool_env.rubric import RewardPart, load_reward


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopSessions:
    """The shop: a database for each episode, and the tools that change it."""

    server: ShopServer
    api: OpenApi
    client: ApiClient

    def open(self, task: Task) -> str:
        """Start the shop of a task; returns the session's token."""
        if "shop" not in task.metadata:
            raise EnvError(f"the task {task.id} is no task of the shop: tool_api makes those with tools=shop")
        try:
            return self.server.open(shop_of(task))
        except (OSError, sqlite3.Error) as error:
            raise ServiceError(f"the shop of an episode cannot be written: {error}") from error

    def tools(self, token: str = "") -> dict[str, Tool]:
        """Return the tools of a session; without a token they can be shown but not called."""
        client = self.client.with_headers({"Authorization": f"Bearer {token}"}) if token else self.client
        return {tool.name: tool for tool in self.api.tools(client)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    sources: Sources
    shop: ShopSessions | None = None
    rewards: tuple[RewardPart, ...] = ()
    """The user's reward, in place of the comparison of the final answer."""

    def tools(self, token: str = "") -> dict[str, Tool]:
        return {**(self.shop.tools(token) if self.shop else {}), **self.sources.episode_tools()}


@asynccontextmanager
async def open_services(
    *,
    tools: Sequence[str] = (SHOP,),
    level: int = 1,
    operations: Sequence[str] = (),
    data: str = "",
    reward: str = "",
    auth: Sequence[str] = (),
    mcp_env: Sequence[str] = (),
    cassette: str = "",
    cassette_mode: str = "auto",
    requests_per_second: float | None = None,
    host_concurrency: int = 32,
    base_url: str = "",
) -> AsyncIterator[Services]:
    """Open the tools, and close them when left.

    Args:
        tools: "shop", and what `contrib.apis.sources` says: registered names, functions in files, openapi: and mcp:.
        level: of the shop's tasks; it decides which operations of the shop are tools.
        operations: of the shop, instead of the level's; * in a name stands for any text.
        data: a file of tasks; see `envs.data_tasks.data_tasks`.
        reward: "module:function" or "file.py:function" that scores the tasks of `data`; see
            `forge_env.tool_env.rubric`.
        auth: credentials of the sources; see `contrib.apis.sources`.
        mcp_env: names of environment variables that MCP servers are started with, beside HOME, PATH and the like.
        cassette: file of recorded answers of openapi: sources.
        cassette_mode: "auto", "replay" or "record"; see `contrib.apis.http.cassette`.
        requests_per_second: for each host; None for no limit. The shop has no limit.
        host_concurrency: open requests, for each host; the shop has 4.
        base_url: of the service of the only openapi: source; see `contrib.apis.sources`.
    """
    sources_named = checked_sources(tools, data=data)
    others = [source for source in sources_named if source != SHOP]
    has_shop = SHOP in sources_named
    if has_shop and reward:
        raise UserError(f"the shop is scored by its final state, so reward={reward!r} has no place: leave it out")
    if operations and not has_shop:
        raise UserError(f"operations are those of the shop, and tools is {','.join(others)}: leave them out")
    if cassette_mode != "auto" and not cassette:
        raise UserError(f"cassette_mode is {cassette_mode!r} and there is no cassette: name its file with cassette=")
    if cassette and not any(source.startswith("openapi:") for source in others):
        raise UserError("a cassette records the answers of openapi: sources, and tools names none: leave it out")
    async with AsyncExitStack() as stack:
        sources = await stack.enter_async_context(
            open_sources(
                others,
                auth=auth,
                mcp_env=mcp_env,
                requests_per_second=requests_per_second,
                host_concurrency=host_concurrency,
                cassette=cassette,
                cassette_mode=cassette_mode,
                base_url=base_url,
                other_names=OPERATIONS if has_shop else (),
            )
        )
        shop = None
        if has_shop:
            shop = await stack.enter_async_context(_open_shop(shop_operations(level, operations)))
        yield Services(sources=sources, shop=shop, rewards=(load_reward(reward),) if reward else ())


@asynccontextmanager
async def _open_shop(operations: Sequence[str]) -> AsyncIterator[ShopSessions]:
    # A separate client: the state of the shop is scored, so no cassette may answer in its place. Four requests keep the
    # shop busy. httpcore looks at every connection for each request: with 32 an episode took 1.1 to 1.4 times the CPU
    # time.
    settings = ApiSettings(concurrency=4)
    async with ShopServer() as server, ApiClient(settings) as client:
        api = await OpenApi.load(f"{server.base_url}/openapi.json", client=client, include=operations)
        yield ShopSessions(server=server, api=api, client=api.connect(client))
