"""TorchTitan's experiments.rl: groups of eight siblings through its `Rollouter`, with every token."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torchtitan.experiments.rl.environment import MessageEnv, MessageEnvInitOutput, MessageEnvStepOutput
from torchtitan.experiments.rl.renderer import RendererConfig
from torchtitan.experiments.rl.rollout.rollouter import Rollouter
from torchtitan.experiments.rl.rubrics import RewardFn, Rubric
from torchtitan.experiments.rl.types import Completion

from benchmarks.rivals.play import Play
from benchmarks.rivals.task import TASKS, TURNS, calculate, message_of, question, target
from forge_env.core.types import EpisodeLimits
from forge_env.rollout.factory import make
from trainers.model.make import make_model

SIBLINGS = 8
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOL = {"name": "calculator", "description": "Calculate.", "parameters": PARAMETERS}


class Calculator(MessageEnv):
    @dataclass(kw_only=True, slots=True)
    class Config(MessageEnv.Config):
        pass

    def __init__(self, config: Config, *, env_input: int) -> None:
        self._index = env_input

    async def init(self) -> MessageEnvInitOutput:
        return MessageEnvInitOutput(
            init_prompt_messages=[{"role": "user", "content": question(self._index)}], tools=[TOOL]
        )

    async def step(self, completion_message: dict[str, Any]) -> MessageEnvStepOutput:
        if not completion_message.get("tool_calls"):
            return MessageEnvStepOutput(done=True)
        call = completion_message["tool_calls"][0]
        arguments = call.arguments if hasattr(call, "arguments") else call["function"]["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        return MessageEnvStepOutput(env_messages=[{"role": "tool", "content": calculate(arguments["expression"])}])


class Right(RewardFn):
    @dataclass(kw_only=True, slots=True)
    class Config(RewardFn.Config):
        pass

    async def __call__(self, rollout: Any, env_input: int) -> float:
        return float(rollout.turns[-1].completion_message["content"].strip() == target(env_input))


class Tasks:
    """Numbers of tasks, as a data set of the library builds itself."""

    def build(self) -> Any:
        return iter(range(10**9))


@asynccontextmanager
async def rollouter(seconds: float) -> AsyncIterator[Play]:
    with tempfile.TemporaryDirectory() as folder:
        await make_model(Path(folder), make("math"), seed=0, limits=EpisodeLimits())
        renderer = RendererConfig(name="qwen3").build(tokenizer_path=folder)
        rubric = Rubric.Config(reward_fns=[Right.Config()])
        config = Rollouter.Config(
            train_dataset=Tasks(), validation_dataset=Tasks(), rubric=rubric, message_env=Calculator.Config()
        )
        played = config.build()
        answers = [[answer_tokens(renderer, question(index), turn) for turn in range(TURNS)] for index in range(TASKS)]

        async def generate(prompt_token_ids: list[int], *, request_id: str, **others: Any) -> Completion:
            await asyncio.sleep(seconds)
            number, _, place = (int(part.partition("=")[2]) for part in request_id.split("/"))
            ids = answers[number % TASKS][place]
            return Completion(
                min_policy_version=0, max_policy_version=0, request_id=request_id, token_ids=ids,
                token_logprobs=[-0.001] * len(ids), finish_reason="stop",
            )  # fmt: skip

        async def group(index: int) -> float:
            done = await played.run_group_rollouts(
                generate_fn=generate, sample=index, group_id=index, group_size=SIBLINGS,
                sampling=SimpleNamespace(seed=None), renderer=renderer,
            )  # fmt: skip
            return sum(rollout.reward * (len(rollout.turns) == TURNS) for rollout in done.rollouts)

        async def play(episodes: int) -> None:
            rewards = await asyncio.gather(*(group(index) for index in range(episodes // SIBLINGS)))
            assert sum(rewards) == episodes

        yield play


def answer_tokens(renderer: Any, text: str, turn: int) -> list[int]:
    """The tokens of a turn, as the template writes it, to its end."""
    before = [{"role": "user", "content": text}]
    prompt = renderer.render_ids(before, add_generation_prompt=True)
    whole = renderer.render_ids([*before, message_of(text, turn)])
    ids = list(whole[len(prompt) :])
    end = renderer.get_stop_token_ids()[0]
    return ids[: ids.index(end) + 1]


PACKAGE = "torchtitan"
WAYS = {"Rollouter": (rollouter, 1024)}
