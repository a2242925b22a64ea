"""What a turn takes in the processes of the environments, with many episodes at once and a model of a fixed time.

    python -m benchmarks.env_servers [--processes 1] [--episodes 1024] [--model-ms 50] [--json FILE]

Real EnvActors play groups of eight five-turn calculator episodes, so many episodes at once over all processes; a group
that ends makes room for the next. The model answers every request after the same time, however many ask. There are
three ways, one after another:

    text      the model is a script in the environments' own processes: messages only
    tokens    the same, and every token is accounted for: rendered, parsed, checked
    service   tokens, from a process of its own that has all of PolicyActor but the engine, by way of ActorPolicy

A turn is the model's answer and the environment's step, in seconds of the clock. Its ideal is the model's time alone.
`ideal_over_turns_per_second` says the same of the whole. CPU time is that of each process, per turn of all of them; the
controller is the process that starts the groups and gets the episodes.

No GPU and no network are used. The tokenizer is that of a tiny model, which needs torch to be made; `--model FOLDER`
takes one that is there, and `--ways text` needs none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.generator.policy import ActorPolicy, PolicyActor
from agents.generator.settings import EngineSettings
from agents.scripted import ScriptedAgent
from agents.token_agent import TokenAgent
from benchmarks.machine import describe
from benchmarks.rollouts import LIMITS, PAIRS, TASKS, TURNS, PreparedPolicy, script
from envs.actors.env import EnvActor
from forge_env.core.episode import Group
from forge_env.core.faults import SHRINK
from forge_env.core.turn import Completion
from forge_env.core.types import EpisodeLimits, Message, Sampling
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import GroupSpec
from forge_env.runtime.launcher import Launcher
from forge_env.utils.gc_settings import relax_garbage_collector, shorten_collections
from trainers.model.make import make_model

SIBLINGS = 8
WAYS = ("text", "tokens", "service")


def text_model(seconds: float) -> ScriptedAgent:
    """An agent whose model is a script that takes `seconds` for a message."""

    async def answer(messages: list[Message]) -> Message:
        await asyncio.sleep(seconds)
        return await script(messages)

    return ScriptedAgent(answer)


def token_model(model: str, seconds: float) -> TokenAgent:
    """An agent whose model gives prepared tokens after `seconds`."""
    return TokenAgent(model, PreparedPolicy(model, seconds))


class PreparedActor(PolicyActor):
    """A PolicyActor without an engine: it gives prepared tokens after `seconds`."""

    def __init__(self, *, model: str, seconds: float, **base: Any) -> None:
        super().__init__(model=model, settings=EngineSettings(), **base)
        self._seconds = seconds

    async def on_start(self) -> None:
        self._engine: Any = PreparedEngine(self._model, self._seconds)
        relax_garbage_collector()


class PreparedEngine:
    """Answers as `VLLMEngine` does."""

    broken = ""

    def __init__(self, model: str, seconds: float) -> None:
        self._policy = PreparedPolicy(model, seconds)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str) -> Completion:
        session, _, _ = request_id.rpartition("/")  # before the number of the turn
        return await self._policy.generate(prompt_ids, sampling, request_id=request_id, session=session)

    async def close(self) -> None:
        """There is nothing to close."""


async def measure(way: str, model: str, given: argparse.Namespace) -> dict[str, Any]:
    """Play `rounds` times as many episodes as run at once, of which all but the first count; returns the figures."""
    seconds, groups_at_once = given.model_ms / 1000, given.episodes // SIBLINGS
    async with Launcher() as launcher:
        agent: tuple[str, dict[str, Any]]
        if way == "text":
            agent = "benchmarks.env_servers:text_model", {"seconds": seconds}
        elif way == "tokens":
            agent = "benchmarks.env_servers:token_model", {"model": model, "seconds": seconds}
        else:
            policy: Any = await PreparedActor.options().as_service(name="policy", model=model, seconds=seconds)
            agent = "agents.token_agent:TokenAgent", {"model": model, "policy": ActorPolicy(policy.client)}
        envs = await EnvActor.options(num_replicas=given.processes).as_service(
            name="envs",
            env="benchmarks.rollouts:Calculator",
            options={},
            agents={"policy": agent},
            limits=LIMITS,
            on_fault=SHRINK,
        )
        shorten_collections()  # as a run's controller does
        numbers = iter(range(groups_at_once * (given.rounds + 1) - 1))
        groups: list[Group] = []

        async def player() -> None:
            for i in numbers:
                task, _ = PAIRS[i % TASKS]
                call = envs.route(
                    EnvActor.run_group,
                    GroupSpec(task=task, agent="policy", count=SIBLINGS, seed=i, group_id=str(i)),
                )
                groups.append(await call)
                if len(groups) == groups_at_once:  # everything has run once: from here on it counts
                    begun.set()
                if len(groups) == groups_at_once * given.rounds:  # from here on no group takes the place of one
                    ended.set()

        begun, ended = asyncio.Event(), asyncio.Event()
        players = [asyncio.create_task(player()) for _ in range(groups_at_once)]
        await begun.wait()
        pids = launcher.pids() | {"controller": [os.getpid()]}
        before, started, first = cpu_of_all(pids), time.perf_counter(), len(groups)
        await ended.wait()
        elapsed, after, last = time.perf_counter() - started, cpu_of_all(pids), len(groups)
        await asyncio.gather(*players)
    episodes = [episode for group in groups for episode in group.episodes]
    wrong = [episode for episode in episodes if episode.reward != 1.0 or len(episode.turns) != TURNS]
    assert not wrong, wrong[0]
    turns = (last - first) * SIBLINGS * TURNS
    over = np.array(
        [
            (turn.policy_seconds + turn.env_seconds) / seconds
            for group in groups[first:last]
            for episode in group.episodes
            for turn in episode.turns
        ]
    )
    ideal = given.episodes / seconds
    spent = {name: after[name] - before[name] for name in pids}
    return {
        "turns": turns,
        "turn_p50_over_ideal": float(np.median(over)),
        "turn_p99_over_ideal": float(np.percentile(over, 99)),
        "turns_per_second": turns / elapsed,
        "ideal_turns_per_second": ideal,
        "ideal_over_turns_per_second": ideal * elapsed / turns,
        "seconds": elapsed,
        "cpu_seconds": spent,
        "cpu_us_of_a_turn": {name: 1e6 * value / turns for name, value in spent.items()},
    }


def cpu_of_all(pids: dict[str, list[int]]) -> dict[str, float]:
    """CPU seconds of processes so far, by name."""
    return {name: sum(map(cpu_of, numbers)) for name, numbers in pids.items()}


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    parser.add_argument("--processes", type=int, default=1, help="of the environments")
    parser.add_argument("--episodes", type=int, default=1024, help="at once, in groups of 8, over all processes")
    parser.add_argument("--model-ms", type=float, default=50.0, help="milliseconds of an answer")
    parser.add_argument(
        "--rounds", type=int, default=4, help="times `episodes` that are played; the first does not count"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--model", default="", help="folder of a tokenizer, instead of a tiny model's")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error(f"--rounds is {given.rounds}: the first round does not count, so there are two at least")
    if given.episodes < SIBLINGS:
        parser.error(f"--episodes is {given.episodes}: a group has {SIBLINGS}")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        if not given.model and set(given.ways) != {"text"}:
            asyncio.run(make_model(Path(folder), make("math"), seed=0, limits=EpisodeLimits()))
        for way in given.ways:
            found[way] = asyncio.run(measure(way, given.model or folder, given))
            cpu = ", ".join(f"{name} {value:.0f}" for name, value in found[way]["cpu_us_of_a_turn"].items())
            print(
                f"{way:>8}  a turn over ideal: p50 {found[way]['turn_p50_over_ideal']:.2f}, "
                f"p99 {found[way]['turn_p99_over_ideal']:.2f}; {found[way]['turns_per_second']:,.0f} turns/s; "
                f"CPU us of a turn: {cpu}",
                flush=True,
            )
    if given.json:
        settings = {name: getattr(given, name) for name in ("processes", "episodes", "model_ms", "rounds")}
        settings |= {"turns": TURNS, "siblings": SIBLINGS, "load_average": os.getloadavg()[0]}
        given.json.write_text(json.dumps({"machine": describe(), **settings, "ways": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
