"""A server of sessions whose episodes the test begins, and what an agent elsewhere does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from forge_env.core.episode import Episode
from forge_env.core.protocols import Agent
from forge_env.core.types import EpisodeLimits, Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode

TOKEN = "a-token-that-nobody-guesses"
TASK = Task(prompt=({"role": "user", "content": "What is 1 + 2?"},), target="3", metadata={"level": 1})


@dataclass
class Served:
    """A server, its episodes, and a client that has its token."""

    factory: EnvFactory
    client: httpx.AsyncClient
    episodes: list[asyncio.Task[Episode]] = field(default_factory=list)

    def begin(
        self, agent: Agent, *, seed: int = 0, task: Task = TASK, limits: EpisodeLimits | None = None
    ) -> asyncio.Task[Episode]:
        """Begin an episode, as a run does."""
        work = run_episode(self.factory, agent, task, seed=seed, episode_id=f"e{seed}", limits=limits)
        self.episodes.append(asyncio.create_task(work))
        return self.episodes[-1]

    async def take(self, **body: Any) -> dict[str, Any]:
        """Take a session."""
        response = await self.client.post("/sessions", json=body)
        assert response.status_code == 201, response.text
        return response.json()

    async def chat(self, session: dict[str, Any], *texts: str) -> httpx.Response:
        """Ask the model of a session."""
        messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
        return await self.client.post(
            "/v1/chat/completions",
            json={"model": session["model"], "messages": messages},
            headers={"Authorization": f"Bearer {session['api_key']}"},
        )

    async def finish(self, session: dict[str, Any], **body: Any) -> httpx.Response:
        """Finish a session, as its agent."""
        url = f"/sessions/{session['id']}/finish"
        return await self.client.post(url, json=body, headers={"Authorization": f"Bearer {session['api_key']}"})


def error_of(response: httpx.Response) -> str:
    """The one sentence of a refusal."""
    message = str(response.json()["error"]["message"])
    assert "\n" not in message
    return message


Open = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a server with options of the environment sessions."""
    monkeypatch.setenv("FORGE_ENV_TOKEN", TOKEN)

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Served]:
        async with make("sessions", listen="127.0.0.1:0", **options) as factory:
            url = factory.shared["setup"].gateway.base_url.removesuffix("/v1")
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, verify=False) as client:
                server = Served(factory, client)
                try:
                    yield server
                finally:
                    for episode in server.episodes:
                        episode.cancel()
                    await asyncio.gather(*server.episodes, return_exceptions=True)

    return opened
