"""How fast episodes run when the model costs nothing: five-turn calculator episodes in one process on one core.

    python -m benchmarks.rollouts [--json FILE]

All figures are of one run:

    text        environment steps/s with messages only, which are kept
    tokens      environment steps/s with every token accounted for: rendered, bridged, parsed, checked
    step        CPU time of a step with tokens: the whole; what the library `tokenizers` takes; and the difference,
                which is our own
    memory      growth for each live episode, with 4,096 of them that wait for the model's last turn
    latency     a batch of 1,024 episodes with a model that takes 500 ms a turn, against the ideal of five times 500 ms
    plain       steps/s as above when the tool, the reward and the script are plain functions, not coroutines
    median      of the times of 1,024 episodes at once with a model of 50 ms, against the ideal of five times 50 ms;
                the tool and the reward are plain functions

What plays the model gives the text or the tokens of the turn that is due; everything else is what a real run does. The
numbers differ from task to task, so that nothing is fast because it was seen before.

Steps are timed by the CPU time of this process, and a figure is the best of forty runs, because other processes of the
machine slow it down. The latency is in seconds of the clock.
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
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.scripted import ScriptedAgent
from agents.token_agent import TokenAgent
from benchmarks.machine import describe
from forge_env.core.env import Env
from forge_env.core.protocols import Agent
from forge_env.core.tokens import IDS, array_of
from forge_env.core.tools import reward, tool
from forge_env.core.turn import Completion
from forge_env.core.types import EpisodeLimits, Message, Sampling, Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.gc_settings import relax_garbage_collector
from trainers.model.make import make_model

TURNS, TASKS, MODEL_SECONDS, FAST_MODEL_SECONDS, RUNS, EPISODES = 5, 512, 0.5, 0.05, 40, 100
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


class PlainCalculator(ToolEnv):
    """The same, as plain functions."""

    system_prompt = Calculator.system_prompt

    @tool
    def calculator(self, expression: str) -> str:
        """Calculate."""
        left, _, right = expression.partition("+")
        return str(int(left) + int(right))

    @reward
    def correct(self, answer: str) -> float:
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


def plain_script(messages: list[Message]) -> Message:
    """The next message of a solution."""
    return SOLUTIONS[messages[1]["content"]][(len(messages) - 2) // 2]


async def script(messages: list[Message]) -> Message:
    """The same, as a coroutine."""
    return plain_script(messages)


async def fast_model(messages: list[Message]) -> Message:
    """The same, after the time of a fast model."""
    await asyncio.sleep(FAST_MODEL_SECONDS)
    return plain_script(messages)


class PreparedPolicy:
    """Gives the tokens of the turn that is due, after `seconds`, however many ask at once."""

    def __init__(self, model: str, seconds: float = 0.0) -> None:
        renderer = TokenAgent(model, self).renderer
        self._turns = [[array_of(renderer.write(message), IDS) for message in turns] for _, turns in PAIRS]
        self._logprobs = -0.001 * np.arange(LIMITS.max_turn_tokens)
        self._seconds = seconds

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        token_ids = self._turns[int(session.partition("/")[0]) % TASKS][int(request_id.rpartition("/")[2])]
        return Completion(
            prompt_ids=prompt_ids,
            token_ids=token_ids,
            logprobs=self._logprobs[: len(token_ids)],  # an array of its own, as an engine's is
            versions=((0, len(token_ids)),),
        )


async def play(env: type[Env], agent: Agent, episodes: int, concurrency: int) -> tuple[float, float]:
    """Return the seconds that some episodes take, and the median of each; every one is checked, and let go."""
    numbers, seconds = iter(range(episodes)), array("d")

    async def worker() -> None:
        for i in numbers:
            task, _ = PAIRS[i % TASKS]
            began = time.perf_counter()
            episode = await run_episode(factory, agent, task, seed=i, episode_id=str(i), limits=LIMITS)
            assert episode.reward == 1.0 and len(episode.turns) == TURNS, episode
            seconds.append(time.perf_counter() - began)

    async with EnvFactory(env) as factory:
        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return time.perf_counter() - started, statistics.median(seconds)


class LibraryClock:
    """Adds up the CPU seconds of calls of objects of a library; a call within a call counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_running = False

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_running:
                return method(*args, **kwargs)
            self._is_running, started = True, time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - started
                self._is_running = False

        return call


class Timed:
    """Passes everything on to an object, and its calls by way of a clock."""

    def __init__(self, inner: Any, clock: LibraryClock) -> None:
        self._inner = inner
        self._clock = clock

    def __getattr__(self, name: str) -> Callable[..., Any]:
        timed = self._clock.timed(getattr(self._inner, name))
        setattr(self, name, timed)  # found without __getattr__ from now on
        return timed


async def cpu_per_step(
    agent: Agent, clock: LibraryClock | None = None, *, env: type[Env] = Calculator
) -> tuple[float, float]:
    """CPU microseconds of a step, and those of them that `clock` counts; the best of RUNS runs."""
    runs: list[tuple[float, float]] = []
    clock = clock or LibraryClock()
    for _ in range(RUNS):
        clock.seconds, started = 0.0, time.process_time()
        await play(env, agent, EPISODES, 64)
        per_step = 1e6 / EPISODES / TURNS
        runs.append(((time.process_time() - started) * per_step, clock.seconds * per_step))
    return min(runs)


async def measure_steps(model: str) -> dict[str, float]:
    agent = TokenAgent(model, PreparedPolicy(model))
    text, _ = await cpu_per_step(ScriptedAgent(script))
    tokens, _ = await cpu_per_step(agent)
    plain_text, _ = await cpu_per_step(ScriptedAgent(plain_script), env=PlainCalculator)
    plain_tokens, _ = await cpu_per_step(agent, env=PlainCalculator)
    figures = {
        "text_steps_per_second": 1e6 / text,
        "token_steps_per_second": 1e6 / tokens,
        "plain_text_steps_per_second": 1e6 / plain_text,
        "plain_token_steps_per_second": 1e6 / plain_tokens,
    }
    # Clocks cost CPU time, too: the figures below are of runs with them.
    clock = LibraryClock()
    tokenizer: Any = agent.renderer._tokenizer
    tokenizer._tokenizer = Timed(tokenizer._tokenizer, clock)
    whole, library = await cpu_per_step(agent, clock)
    return figures | {"token_step_us": whole, "tokenizers_us": library, "token_step_own_us": whole - library}


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
    patient = TokenAgent(model, PreparedPolicy(model, MODEL_SECONDS))
    figures = await measure_steps(model)
    figures["bytes_per_live_episode"] = await bytes_per_live_episode(model, 4096)
    batch = statistics.median([(await play(Calculator, patient, 1024, 1024))[0] for _ in range(3)])
    figures |= {"batch_seconds": batch, "batch_against_ideal": batch / (MODEL_SECONDS * TURNS)}
    agents = {"text": ScriptedAgent(fast_model), "token": TokenAgent(model, PreparedPolicy(model, FAST_MODEL_SECONDS))}
    for name, agent in agents.items():
        median = statistics.median([(await play(PlainCalculator, agent, 1024, 1024))[1] for _ in range(3)])
        figures[f"plain_{name}_median_against_ideal"] = median / (FAST_MODEL_SECONDS * TURNS)
    return figures


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
        print(f"{name:>32}  {value:,.2f}")
    if options.json:
        noted = {"machine": describe(), "load_average": os.getloadavg()[0]}
        options.json.write_text(json.dumps({**noted, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
