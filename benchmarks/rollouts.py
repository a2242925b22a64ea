"""How fast episodes run when the model costs nothing: five-turn calculator episodes in one process on one core.

    python -m benchmarks.rollouts [--json FILE]

Four figures, all in one run:

    text        environment steps/s with messages only
    tokens      environment steps/s with every token accounted for: rendered, bridged, parsed, checked
    memory      growth for each live episode, with 4,096 of them that wait for the model's last turn
    latency     a batch of 1,024 episodes with a model that takes 500 ms a turn, against the ideal of five times 500 ms

What plays the model gives the text or the tokens of the turn that is due; everything else is what a real run does. The
numbers differ from task to task, so that nothing is fast because it was seen before.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.scripted import ScriptedAgent
from agents.token_agent import TokenAgent
from benchmarks.machine import describe
from forge_env.core.env import Env
from forge_env.core.protocols import Agent
from forge_env.core.tools import reward, tool
from forge_env.core.types import Completion, EpisodeLimits, Message, Sampling, Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.gc_settings import relax_garbage_collector
from trainers.model.make import make_model

TURNS, TASKS, MODEL_SECONDS = 5, 512, 0.5
LIMITS = EpisodeLimits(max_turns=TURNS, max_tokens=4096)


class Calculator(ToolEnv):
    """Four calls and an answer."""

    system_prompt = "Use the calculator. Answer with a number."

    @tool
    async def calculator(self, expression: str) -> str:
        """Calculate."""
        left, _, right = expression.partition("+")
        return str(int(left) + int(right))

    @reward
    async def correct(self, answer: str) -> float:
        return float(answer == self.task.target)


def make_task(rng: random.Random) -> tuple[Task, list[Message]]:
    """Return a task and the five messages that solve it."""
    start, more = rng.randrange(10**6), rng.randrange(10**6)
    sums = [start + i * more for i in range(TURNS)]
    calls = [{"name": "calculator", "arguments": {"expression": f"{number} + {more}"}} for number in sums[:-1]]
    turns: list[Message] = [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]} for call in calls
    ]
    question = f"Start at {start}, and add {more} four times. What is it?"
    task = Task(prompt=({"role": "user", "content": question},), target=str(sums[-1]))
    return task, [*turns, {"role": "assistant", "content": str(sums[-1])}]


_rng = random.Random(0)
PAIRS = [make_task(_rng) for _ in range(TASKS)]
SOLUTIONS = {task.prompt[-1]["content"]: turns for task, turns in PAIRS}


def script(messages: list[Message]) -> Message:
    return SOLUTIONS[messages[1]["content"]][(len(messages) - 2) // 2]


class PreparedPolicy:
    """Gives the tokens of the turn that is due, after `seconds`, however many ask at once."""

    def __init__(self, model: str, seconds: float = 0.0) -> None:
        renderer = TokenAgent(model, self).renderer
        self._turns = [[tuple(renderer.write(message)) for message in turns] for _, turns in PAIRS]
        self._seconds = seconds

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        token_ids = self._turns[int(session) % TASKS][int(request_id.rpartition("/")[2])]
        return Completion(
            prompt_ids=tuple(prompt_ids),
            token_ids=token_ids,
            logprobs=tuple(-0.001 * i for i in range(len(token_ids))),
            versions=((0, len(token_ids)),),
        )


async def play(env: type[Env], agent: Agent, episodes: int, concurrency: int) -> float:
    """Return the seconds that some episodes take; every one is checked, and let go."""
    numbers = iter(range(episodes))

    async def worker() -> None:
        for i in numbers:
            task, _ = PAIRS[i % TASKS]
            episode = await run_episode(factory, agent, task, seed=i, episode_id=str(i), limits=LIMITS)
            assert episode.reward == 1.0 and len(episode.turns) == TURNS, episode

    async with EnvFactory(env) as factory:
        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return time.perf_counter() - started


async def steps_per_second(agent: Agent, episodes: int) -> float:
    """Median of five runs, after one that is not counted."""
    runs = [await play(Calculator, agent, episodes, 64) for _ in range(6)]
    return TURNS * episodes / statistics.median(runs[1:])


class GatheringPolicy(PreparedPolicy):
    """Holds the last turn of every episode back until `live` of them wait for it."""

    def __init__(self, model: str, live: int) -> None:
        super().__init__(model)
        self._missing = live
        self._all_here = asyncio.Event()
        self.resident = 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        if request_id.endswith(f"/{TURNS - 1}"):
            self._missing -= 1
            if not self._missing:
                gc.collect()
                self.resident = resident()
                self._all_here.set()
            await self._all_here.wait()
        return await super().generate(prompt_ids, sampling, request_id=request_id, session=session)


async def bytes_per_live_episode(model: str, live: int) -> float:
    """Growth of this process's memory for each of `live` episodes at once."""
    policy = GatheringPolicy(model, live)
    agent = TokenAgent(model, policy)
    gc.collect()
    before = resident()
    await play(Calculator, agent, live, live)
    return (policy.resident - before) / live


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure(model: str) -> dict[str, Any]:
    tokens = TokenAgent(model, PreparedPolicy(model))
    patient = TokenAgent(model, PreparedPolicy(model, MODEL_SECONDS))
    figures = {
        "text_steps_per_second": await steps_per_second(ScriptedAgent(script), 2000),
        "token_steps_per_second": await steps_per_second(tokens, 800),
        "bytes_per_live_episode": await bytes_per_live_episode(model, 4096),
    }
    batch = statistics.median([await play(Calculator, patient, 1024, 1024) for _ in range(3)])
    return figures | {"batch_seconds": batch, "batch_against_ideal": batch / (MODEL_SECONDS * TURNS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    relax_garbage_collector()  # as the process of the environments does
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(make_model(Path(folder), make("math"), seed=0, limits=EpisodeLimits()))
        figures = asyncio.run(measure(folder))
    for name, value in figures.items():
        print(f"{name:>24}  {value:,.2f}")
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
