"""skyrl-gym: it has environments and no loop; the loop here is as SkyRL's generator has it, a task for each episode.

As there, `init`, `step` and `close` run in a pool of 32 threads, the default of its `max_env_workers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.tools import PythonCodeExecutorToolGroup

from benchmarks.rivals.play import Play, threads
from benchmarks.rivals.task import TURNS, calculate, question, read_tags, tags_of, target

WORKERS = 32


class Calculator(BaseTextEnv):
    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.max_turns, self._target = TURNS, (extras or {})["reward_spec"]["ground_truth"]

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        tag, text = read_tags(action)
        if tag == "calculator" and self.turns < self.max_turns:
            said = [{"role": "user", "content": calculate(text)}]
            return BaseTextEnvStepOutput(observations=said, reward=0.0, done=False, metadata={})
        right = float(text == self._target)
        return BaseTextEnvStepOutput(observations=[], reward=right, done=True, metadata={})


skyrl_gym.register("rivals", Calculator)


@asynccontextmanager
async def pooled(seconds: float) -> AsyncIterator[Play]:
    pool = ThreadPoolExecutor(WORKERS)
    call = partial(asyncio.get_running_loop().run_in_executor, pool)

    async def episode(index: int) -> float:
        env = skyrl_gym.make("rivals", extras={"reward_spec": {"ground_truth": target(index)}})
        messages, _ = await call(env.init, [{"role": "user", "content": question(index)}])
        turn, reward, done = 0, 0.0, False
        while not done:
            if seconds:
                await asyncio.sleep(seconds)
            action = tags_of(messages[0]["content"], turn)
            output = await call(env.step, action)
            messages = [*messages, {"role": "assistant", "content": action}, *output["observations"]]
            turn, reward, done = turn + 1, reward + output["reward"], output["done"]
        await call(env.close)
        return reward

    async def play(episodes: int) -> None:
        rewards = await asyncio.gather(*(episode(index) for index in range(episodes)))
        assert sum(rewards) == episodes

    with pool:
        yield play


PACKAGE = "skyrl-gym"
WAYS = {"32 threads": (pooled, 1024)}
CODE = {"python tool": threads(PythonCodeExecutorToolGroup().python)}
