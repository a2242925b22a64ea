"""forge_env: with messages, with every token, and with messages from the endpoint that other rows ask."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agents.scripted import ScriptedAgent
from agents.token_agent import TokenAgent
from benchmarks.rivals.endpoint import endpoint
from benchmarks.rivals.play import Play, Run, threads
from benchmarks.rollouts import PlainCalculator, PreparedPolicy, plain_script
from benchmarks.rollouts import play as play_batch
from benchmarks.sandbox_clients import bare_python
from contrib.chat.agent import ChatAgent
from forge_env.core.protocols import Agent
from forge_env.core.types import EpisodeLimits, Message
from forge_env.rollout.factory import make
from forge_env.utils.gc_settings import relax_garbage_collector
from sandboxes import open_sandbox
from trainers.model.make import make_model


def playing(agent: Agent) -> Play:
    relax_garbage_collector()  # as the process of the environments does

    async def play(episodes: int) -> None:
        await play_batch(PlainCalculator, agent, episodes, episodes)

    return play


@asynccontextmanager
async def messages(seconds: float) -> AsyncIterator[Play]:
    async def later(conversation: list[Message]) -> Message:
        await asyncio.sleep(seconds)
        return plain_script(conversation)

    yield playing(ScriptedAgent(later if seconds else plain_script))


@asynccontextmanager
async def tokens(seconds: float) -> AsyncIterator[Play]:
    with tempfile.TemporaryDirectory() as folder:
        await make_model(Path(folder), make("math"), seed=0, limits=EpisodeLimits())
        yield playing(TokenAgent(folder, PreparedPolicy(folder, seconds)))


@asynccontextmanager
async def from_endpoint(seconds: float) -> AsyncIterator[Play]:
    async with endpoint(seconds) as url, ChatAgent("policy", url, api_key_env="", max_concurrency=1024) as agent:
        yield playing(agent)


@asynccontextmanager
async def namespace() -> AsyncIterator[Run]:
    async with open_sandbox("namespace") as sandbox:

        async def run(code: str) -> str:
            return (await sandbox.run(code)).stdout

        yield run


PYTHON = bare_python()
WAYS = {"messages": (messages, 1024), "tokens": (tokens, 1024), "messages, endpoint": (from_endpoint, 1024)}
CODE = {
    "sandbox namespace": namespace,
    "bare python -c": threads(lambda text: subprocess.run([PYTHON, "-c", text], capture_output=True, text=True).stdout),
}
