"""What it costs that an environment runs behind HTTP: `forge-env serve` on this machine against the same in-process.

    python -m contrib.serve.benchmarks.serve [--json FILE]

    burn      environment steps/s of 256 episodes at once whose tool takes 1 ms of CPU: in this process, and with the
              environment in a server's process; the ratio is the median of pairs, one run of each after the other
    latency   the time of a step whose tool does nothing, one episode at a time: p50 and p99 in milliseconds, in this
              process and over the loopback; what the wire adds is the difference

Agents are scripted and cost next to nothing. The server is a process of its own, as users start it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.scripted import ScriptedAgent
from benchmarks.machine import describe
from forge_env.core.tools import reward, tool
from forge_env.core.types import EpisodeLimits, Message, Outcome, Task
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.gc_settings import relax_garbage_collector

TURNS, AT_ONCE, PAIRS, LATENCY_EPISODES = 8, 256, 5, 300
LIMITS = EpisodeLimits(max_turns=TURNS)
TOKEN_VARIABLE = "FORGE_ENV_TOKEN"


class Burn(ToolEnv):
    """A tool that takes CPU time, and one that takes none."""

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return [Task(prompt=({"role": "user", "content": f"Task {i}."},), target="done") for i in range(count)]

    @tool
    async def burn(self) -> str:
        """Take 1 ms of CPU time."""
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return "burnt"

    @tool
    async def nothing(self) -> str:
        """Take no time."""
        return "nothing"

    @reward
    def right(self, answer: str) -> float:
        return float(answer == self.task.target)


def agent(name: str) -> ScriptedAgent:
    """Return an agent that calls a tool in every turn but the last."""

    async def script(messages: list[Message]) -> Message:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == TURNS - 1:
            return {"role": "assistant", "content": "done"}
        call = {"id": f"c{turn}", "type": "function", "function": {"name": name, "arguments": {}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    return ScriptedAgent(script)


@contextmanager
def served() -> Iterator[str]:
    """Run the server of `Burn`; yields its URL."""
    command = [sys.executable, "-m", "forge_env", "serve", "--env", "contrib.serve.benchmarks.serve:Burn", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        announced = json.loads(server.stdout.readline())
        os.environ[TOKEN_VARIABLE] = announced["token"]
        yield announced["url"]
    finally:
        server.terminate()
        server.wait(30)


async def steps_per_second(env: str) -> float:
    async with make(env) as factory:
        tasks = factory.tasks(count=AT_ONCE)
        burning = agent("burn")
        started = time.perf_counter()
        runs = [
            run_episode(factory, burning, task, seed=i, episode_id=str(i), limits=LIMITS)
            for i, task in enumerate(tasks)
        ]
        episodes = await asyncio.gather(*runs)
        seconds = time.perf_counter() - started
    assert all(episode.outcome is Outcome.SCORED and episode.reward == 1.0 for episode in episodes)
    return AT_ONCE * TURNS / seconds


async def step_milliseconds(env: str) -> dict[str, float]:
    """The p50 and p99 of the steps that call a tool, one episode at a time."""
    took: list[float] = []
    async with make(env) as factory:
        task = factory.tasks(count=1)[0]
        idle = agent("nothing")
        for i in range(LATENCY_EPISODES):
            episode = await run_episode(factory, idle, task, seed=i, episode_id=str(i), limits=LIMITS)
            assert episode.reward == 1.0
            took += [1000 * turn.env_seconds for turn in episode.turns[:-1]]
    percentiles = statistics.quantiles(took, n=100)
    return {"p50": percentiles[49], "p99": percentiles[98]}


def measure() -> dict[str, Any]:
    here = "contrib.serve.benchmarks.serve:Burn"
    with served() as url:
        pairs = [(asyncio.run(steps_per_second(here)), asyncio.run(steps_per_second(url))) for _ in range(PAIRS)]
        local, remote = asyncio.run(step_milliseconds(here)), asyncio.run(step_milliseconds(url))
    ratios = [b / a for a, b in pairs]
    return {
        "episodes_at_once": AT_ONCE,
        "steps_per_second_in_process": [a for a, _ in pairs],
        "steps_per_second_served": [b for _, b in pairs],
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "step_ms_in_process": local,
        "step_ms_served": remote,
        "wire_adds_ms": {name: remote[name] - local[name] for name in local},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    options = parser.parse_args()
    relax_garbage_collector()
    figures = measure()
    print(json.dumps(figures, indent=2))
    if options.json:
        noted = {"machine": describe(), "load_average": os.getloadavg()[0]}
        options.json.write_text(json.dumps({**noted, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
