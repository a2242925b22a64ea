"""Plays external with the test itself in the program's place, and agents that say what a test wants."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openai
from openai import AsyncOpenAI

from agents.token_agent import TokenAgent
from forge_env.core.episode import Episode
from forge_env.core.protocols import Agent
from forge_env.core.tokens import Ids
from forge_env.core.turn import Completion
from forge_env.core.types import EpisodeLimits, Message, Sampling, Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from tests.helpers.scripted_policy import ScriptedPolicy

TASK = Task(prompt=({"role": "user", "content": "go"},), target="3")
LIMITS = EpisodeLimits(max_turns=20, step_seconds=60.0)
ENGINE_LIMITS = EpisodeLimits(max_turns=6, max_tokens=12_000, max_turn_tokens=60)
_NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD: Any = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": _NUMBERS}}
"""A tool, in the form of OpenAI's Chat Completions."""


def make_long_model(model: Path, folder: Path, *, positions: int = 16_384) -> None:
    """Copy a model, for the long prompts of agent packages."""
    shutil.copytree(model, folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": positions}))


class SaysPolicy(ScriptedPolicy):
    """Writes one message after another as the model would have, and remembers what it was asked."""

    def __init__(self, model: Path, messages: Sequence[Message | str]) -> None:
        renderer = _agent_of(model).renderer
        content_of = [{"role": "assistant", "content": m} if isinstance(m, str) else m for m in messages]
        answers = iter([renderer.write(message) for message in content_of])
        super().__init__(lambda prompt: next(answers))
        self.asked: list[tuple[tuple[int, ...], Sampling, str]] = []

    async def generate(self, prompt_ids: Ids, sampling: Sampling, *, request_id: str, session: str) -> Completion:
        self.asked.append((tuple(prompt_ids), sampling, request_id))
        done = await super().generate(prompt_ids, sampling, request_id=request_id, session=session)
        logprobs = tuple(-1 - i / 8 for i in range(len(done.token_ids)))
        return replace(done, logprobs=logprobs, constrained=len(logprobs) if sampling.grammar else 0)


def says(model: Path, *messages: Message | str) -> TokenAgent:
    """A TokenAgent whose model says these, in order."""
    return with_policy(model, SaysPolicy(model, messages))


def with_policy(model: Path, policy: ScriptedPolicy) -> TokenAgent:
    """A TokenAgent of a policy."""
    agent = copy.copy(_agent_of(model))
    agent._policy = policy
    return agent


@functools.cache
def _agent_of(model: Path) -> TokenAgent:
    """One for all tests: to read a chat template takes a tenth of a second."""
    return TokenAgent(str(model), ScriptedPolicy(lambda prompt: ()))


def calls(name: str, **arguments: Any) -> Message:
    """A message that calls a tool."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def plain(sdk: Any = openai, **options: Any) -> Any:
    """A client of an SDK without certificates: to read them takes longer than a test."""
    return sdk.DefaultAsyncHttpxClient(verify=False, timeout=30, **options)


@dataclass
class Playing:
    """An episode whose program the test plays."""

    base_url: str
    token: str
    client: AsyncOpenAI
    _done: Path
    _episode: asyncio.Task[Episode]
    factory: EnvFactory = field(repr=False)
    agent: Any

    @property
    def requests(self) -> list[tuple[tuple[int, ...], Sampling, str]]:
        """The prompts that the model of `says` has had, with their sampling, and names."""
        requests: list[tuple[tuple[int, ...], Sampling, str]] = self.agent._policy.asked
        return requests

    async def end(self, last_line: str = '{"reward": 1.0}', code: int = 0) -> Episode:
        """Let the program print a line, write it to its result if it is JSON, and end; return the episode."""
        write = asyncio.to_thread(self._done.write_text, f"{code} {last_line}\n")
        await asyncio.wait_for(write, 30)
        return await self.episode()

    async def episode(self) -> Episode:
        """The episode, when it has ended by itself."""
        return await asyncio.wait_for(asyncio.shield(self._episode), 60)

    async def chat(self, *messages: Any, **options: Any) -> Any:
        """The answer to a list of messages; a text is the user's."""
        listed = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        return await self.client.chat.completions.create(model="any", messages=listed, **options)


Play = Callable[..., AbstractAsyncContextManager[Playing]]
Check = Callable[[Episode], None]
"""The fixtures of these names."""


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[EnvFactory]:
    """A factory of external whose programs wait for what `Playing.end` writes."""
    command = 'printf "%s\\n" "$OPENAI_BASE_URL $OPENAI_API_KEY" > "$1/$FORGE_ENV_SEED.start"'
    command += '; read code line < "$1/$FORGE_ENV_SEED.end"; printf "%s\\n" "$line"'
    command += '; case "$line" in "{"*) printf "%s" "$line" > "$FORGE_ENV_RESULT";; esac; exit "$code"'
    folder = options.pop("folder")
    options.setdefault("command", shlex.join(["sh", "-c", command, "sh", str(folder)]))
    async with make("external", **options) as factory:
        yield factory


@asynccontextmanager
async def playing(
    factory: EnvFactory, agent: Agent, folder: Path, *, seed: int = 0, limits: EpisodeLimits = LIMITS, task: Task = TASK
) -> AsyncIterator[Playing]:
    """Start an episode, and give what its program is told."""
    start, end = folder / f"{seed}.start", folder / f"{seed}.end"
    os.mkfifo(start)
    os.mkfifo(end)
    episode = asyncio.create_task(run_episode(factory, agent, task, seed=seed, episode_id=f"e{seed}", limits=limits))
    try:
        address = await asyncio.wait_for(asyncio.to_thread(start.read_text), 60)
        base_url, token = address.split()
        async with AsyncOpenAI(base_url=base_url, api_key=token, max_retries=0, http_client=plain()) as client:
            yield Playing(base_url, token, client, end, episode, factory, agent)
    finally:
        episode.cancel()
        await asyncio.gather(episode, return_exceptions=True)


def as_json(value: Any) -> Any:
    """What a client's object holds."""
    return json.loads(value.model_dump_json())
