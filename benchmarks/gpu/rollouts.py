"""Multi-turn rollouts through EnvActors and a PolicyActor, against bare vLLM on the same tokens and GPU.

    python -m benchmarks.gpu.rollouts [--shape 0.6B] [--episodes 1024] [--at-once 256] [--envs 4] [--engines 1]
                                      [--arms default,vllm_path] [--no-bare] [--least 32] [--most 224] [--json FILE]

Episodes of four turns in an environment that answers at once. A turn is of 32 to 224 sampled tokens, 128 on average:
turns differ in every run, and equal ones would all end in one step, and begin in one. The same is then asked of a bare
`LLMEngine` with the same settings, in a process of its own: the same prompts, as many tokens in each turn, the turns of
an episode one after the other, as many groups of episodes at once, each until its last episode has ended. What it has
sampled itself is in its later prompts, so that it finds as much in its prefix cache. Tokens are sampled tokens; the
engine's start is not timed. Arms are settings of the engine: those of a run; graphs for steps of up to 512 tokens only;
vLLM's own way of a step; and the worker in the engine's process. `ratio` is the run's default over the best bare
engine. With --engines the engines share the GPU, and there is no bare one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents.generator.policy import ActorPolicy, PolicyActor
from agents.generator.settings import EngineSettings
from agents.generator.start import GRAPH_SIZES, load_engine
from agents.generator.stats import EngineStats
from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.machine import describe
from envs.actors.env import EnvActor
from forge_env.core.env import Env
from forge_env.core.faults import SHRINK
from forge_env.core.protocols import NextTurn
from forge_env.core.types import Action, EpisodeLimits, Task
from forge_env.rollout.rollout import GroupSpec
from forge_env.runtime.launcher import Launcher
from forge_env.runtime.process.visible_gpus import names_of
from trainers.settings.services import GeneratorConfig

LEAST, MOST, SIBLINGS = 32, 224, 8
"""Sampled tokens of a turn, and episodes of a group."""
WARM_UP = 4
"""Groups that are not timed."""
TURNS, CONTEXT = 4, 2048
LIMITS = EpisodeLimits(max_turns=TURNS, max_turn_tokens=MOST, max_tokens=CONTEXT)
ARMS: dict[str, dict[str, Any]] = {
    "default": {},
    "graphs_to_512": {"engine_args": {"cudagraph_capture_sizes": [size for size in GRAPH_SIZES if size <= 512]}},
    "vllm_path": {"fast_path": False},
    "in_process": {"worker_process": False},
}


class Chatter(Env):
    """Asks four times, whatever the answers are.

    Args:
        least: sampled tokens of a turn.
        most: the same.
    """

    def __init__(self, least: int = LEAST, most: int = MOST) -> None:
        self.tokens = least, most

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return [
            Task(prompt=({"role": "user", "content": f"What is {number} plus {number * 7 % 1000}? " * 4},))
            for number in range(count)
        ]

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.turn = 0
        self.random = random.Random(seed)
        return list(options["task"].prompt), self._next_turn()

    async def step(self, action: Action) -> Any:
        self.turn += 1
        return (
            [{"role": "user", "content": f"And what is {self.turn} more than that?"}],
            0.0,
            self.turn == TURNS,
            False,
            self._next_turn(),
        )

    def _next_turn(self) -> dict[str, Any]:
        return {"next": NextTurn(max_tokens=self.random.randint(*self.tokens))}


def settings(given: argparse.Namespace, arm: str) -> EngineSettings:
    return EngineSettings(
        max_model_len=CONTEXT,
        max_requests=given.at_once,
        dtype="bfloat16",
        kv_cache_gib=32.0 / given.engines,
        cuda_graphs=True,
        **{"worker_process": GeneratorConfig().worker_process} | ARMS[arm],
    )


async def through_actors(model: Path, given: argparse.Namespace, arm: str) -> tuple[dict[str, Any], list[list[Any]]]:
    """Seconds and tokens; and of each episode its turns: ids that the environment added, number of sampled ones, and
    whether the prompt has these ids only."""
    async with Launcher():
        started = time.perf_counter()
        first_gpu = {"CUDA_VISIBLE_DEVICES": names_of([0])[0]}
        policy = await PolicyActor.options(
            num_replicas=given.engines, start_seconds=600, environ=lambda _: first_gpu
        ).as_service(model=str(model), settings=settings(given, arm))
        ready = time.perf_counter() - started
        agent = ("agents.token_agent:TokenAgent", {"model": str(model), "policy": ActorPolicy(policy.client)})
        envs = await EnvActor.options(num_replicas=given.envs).as_service(
            env="benchmarks.gpu.rollouts:Chatter",
            options={"least": given.least, "most": given.most},
            agents={"policy": agent},
            limits=LIMITS,
            on_fault=SHRINK,
        )
        limit = asyncio.Semaphore(given.at_once // SIBLINGS)

        tasks = Chatter.tasks(count=WARM_UP + given.episodes // SIBLINGS)

        async def group(number: int) -> Any:
            async with limit:
                return await envs.route(
                    EnvActor.run_group,
                    GroupSpec(
                        task=tasks[number], agent="policy", count=SIBLINGS, seed=1000 * number, group_id=str(number)
                    ),
                )

        await asyncio.gather(*map(group, range(WARM_UP)))  # so that everything has run once
        before = await policy.fanout(PolicyActor.use)
        started = time.perf_counter()
        groups = await asyncio.gather(*map(group, range(WARM_UP, len(tasks))))
        seconds = time.perf_counter() - started
        after = await policy.fanout(PolicyActor.use)
    counts = {name: sum(getattr(each, name) for each in after) for name in asdict(after[0])}
    did = EngineStats(**{name: value - sum(getattr(each, name) for each in before) for name, value in counts.items()})
    turns, tokens = [], 0
    for episode in (episode for each in groups for episode in each.episodes):
        assert episode.outcome.is_valid, episode.error
        turns.append([[turn.prompt_ids.tolist(), len(turn.token_ids), turn.starts_row] for turn in episode.turns])
        tokens += episode.num_sampled
    found = {
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "engine_ready": ready,
        "engine": _engine_figures(did, seconds),
    }
    return found, turns


def bare(model: str, turns: list[list[Any]], given: argparse.Namespace) -> dict[str, Any]:
    """The same requests from a plain loop around the engine."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    engine = load_engine(model, settings(given, given.arms[0]))
    prompts: list[list[int]] = []

    def add(episode: int, turn: int) -> None:
        added, count, starts_row = turns[episode][turn]
        # Random weights may write the mark of a thought, which the template then leaves out of the next prompt.
        prompts[episode] = added.copy() if starts_row else prompts[episode] + added
        params = SamplingParams(
            max_tokens=count,
            seed=episode,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        engine.add_request(f"{episode}/{turn}", TokensPrompt(prompt_token_ids=list(prompts[episode])), params)

    stats = EngineStats()

    def play(count: int) -> int:
        waiting, running, tokens = list(range(count // SIBLINGS)), {}, 0
        prompts[:] = [[] for _ in range(count)]

        def begin() -> None:
            group = waiting.pop(0)
            running[group] = SIBLINGS
            for episode in range(group * SIBLINGS, (group + 1) * SIBLINGS):
                add(episode, 0)

        for _ in range(min(given.at_once // SIBLINGS, len(waiting))):
            begin()
        while engine.has_unfinished_requests():
            stats.request_steps += engine.get_num_unfinished_requests()
            began = time.perf_counter()
            outputs = engine.step()
            stats.steps += 1
            stats.step_seconds += time.perf_counter() - began
            for output in outputs:
                if not output.finished:
                    continue
                episode, turn = map(int, output.request_id.split("/"))
                prompts[episode] += output.outputs[0].token_ids
                tokens += len(output.outputs[0].token_ids)
                if turn + 1 < len(turns[episode]):
                    add(episode, turn + 1)
                    continue
                running[episode // SIBLINGS] -= 1
                if not running[episode // SIBLINGS] and waiting:
                    begin()
        return tokens

    play(32)
    engine.reset_prefix_cache()
    stats = EngineStats()
    started = time.perf_counter()
    tokens = play(len(turns))
    seconds = time.perf_counter() - started
    return {
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "engine": _engine_figures(stats, seconds),
    }


def _engine_figures(stats: EngineStats, seconds: float) -> dict[str, Any]:
    """Steps of an engine within some seconds: how long they are, and how full."""
    figures = {
        "steps": stats.steps,
        "seconds_per_step": stats.step_seconds / stats.steps,
        "requests_at_once": stats.request_steps / stats.steps,
        "share_in_steps": stats.step_seconds / seconds,
    }
    if stats.worker_seconds:
        work = stats.step_seconds - stats.worker_seconds
        figures["thread_busy"] = (work + stats.admission_seconds) / stats.clock
        figures["us_per_request_and_step"] = 1e6 * work / stats.request_steps
        figures["admission_seconds"] = stats.admission_seconds
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6B")
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--at-once", type=int, default=256)
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--least", type=int, default=LEAST)
    parser.add_argument("--most", type=int, default=MOST)
    parser.add_argument("--arms", type=lambda text: text.split(","), default=["default", "vllm_path"])
    parser.add_argument("--no-bare", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        asked = json.loads(given.bare.read_text())
        print(json.dumps(bare(asked["model"], asked["turns"], given)))
        return
    by_arm: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temp:
        model = Path(temp) / "model"
        make_random_model(given.shape, make_tokenizer(Path(temp) / "tokenizer"), model)
        for arm in given.arms:
            ours, turns = asyncio.run(through_actors(model, given, arm))
            by_arm[arm] = {"through_actors": ours}
            if not given.no_bare and given.engines == 1:
                asked = Path(temp) / "turns.json"
                asked.write_text(json.dumps({"model": str(model), "turns": turns}))
                command = [sys.executable, "-m", "benchmarks.gpu.rollouts", "--bare", str(asked)]
                command += ["--at-once", str(given.at_once), "--arms", arm]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=580)
                by_arm[arm]["bare"] = json.loads(done.stdout.splitlines()[-1])
            print(arm, json.dumps(by_arm[arm]), flush=True)
    hidden = ("json", "bare", "no_bare")
    result = {
        "machine": describe(),
        "settings": {name: value for name, value in vars(given).items() if name not in hidden},
        **by_arm,
    }
    if bares := [found["bare"]["tokens_per_second"] for found in by_arm.values() if "bare" in found]:
        ratios = {name: found["through_actors"]["tokens_per_second"] / max(bares) for name, found in by_arm.items()}
        result |= {"ratios_over_best_bare": ratios, "ratio": ratios.get("default")}
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
