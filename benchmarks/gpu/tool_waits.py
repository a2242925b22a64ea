"""Multi-turn rollouts whose tools take time, and that need more cache than there is: with and without admission.

    python -m benchmarks.gpu.tool_waits [--shape 0.6B] [--at-once 256] [--times 4] [--wait 2.0] [--cpu] [--json FILE]

Episodes of six turns, of 32 to 224 sampled tokens each, 128 on average. After each turn a tool takes a time that is
lognormal, 2 s on average with sigma 1, and answers with a text of as many tokens. Eight siblings share a prompt. The
cache holds a quarter of the episodes that run at once, at their full length. Both engines get the same episodes: the
prompts, limits of turns and times of tools are those of the seeds. Tokens are sampled ones; the engine's start is
not timed. "--cpu" is a tiny model on a CPU, with shorter prompts: it shows what becomes of the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents.generator.policy import ActorPolicy, PolicyActor
from agents.generator.start import CPU_BLOCK_TOKENS, EngineSettings
from agents.renderer.rendering import Renderer
from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.machine import describe
from envs.actors.env import EnvActor
from forge_env.core.env import Env
from forge_env.core.faults import SHRINK
from forge_env.core.protocols import Conversation, NextTurn
from forge_env.core.types import Action, EpisodeLimits, Message, Task
from forge_env.runtime.launcher import Launcher

TURNS, LEAST, MOST, SIBLINGS, SIGMA = 6, 32, 224, 8, 1.0
BLOCK = {"gpu": 16, "cpu": CPU_BLOCK_TOKENS}  # tokens; on a GPU vLLM's
UNIT = "And what is 12 + 30 more than that? "


class Waiter(Env):
    """Asks six times, and waits before it asks again.

    Args:
        wait: mean seconds of a tool.
        answer: text of a tool's answer.
    """

    def __init__(self, wait: float, answer: str) -> None:
        self.wait = wait
        self.answer = answer

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.turn = 0
        self.random = random.Random(seed)
        return [{"role": "user", "content": options["task"].prompt[0]["content"]}], self._asked()

    async def step(self, action: Action) -> Any:
        self.turn += 1
        if self.turn < TURNS:  # the mean of a lognormal is exp(mu + sigma ** 2 / 2)
            await asyncio.sleep(self.random.lognormvariate(math.log(self.wait) - SIGMA**2 / 2, SIGMA))
        news = [{"role": "user", "content": self.answer}]
        return news, 0.0, self.turn == TURNS, False, self._asked()

    def _asked(self) -> dict[str, Any]:
        return {"next": NextTurn(max_tokens=self.random.randint(LEAST, MOST))}


def text_of(model: Path, tokens: int) -> str:
    """A text of about so many tokens."""
    renderer = Renderer(str(model))

    def count(repeats: int) -> int:
        message: Message = {"role": "user", "content": UNIT * repeats}
        return len(renderer.next_prompt(Conversation(request_id="", observation=(message,)), ())[0])

    each = count(2) - count(1)
    return UNIT * max(1, round(tokens / each))


async def measure(model: Path, given: argparse.Namespace, *, admission: bool) -> dict[str, Any]:
    """Tokens a second of all episodes, and what the engine did."""
    answer = text_of(model, given.answer_tokens)
    prompt = text_of(model, given.prompt_tokens)
    own = TURNS * ((LEAST + MOST) // 2 + given.answer_tokens)
    groups_at_once = given.at_once // SIBLINGS
    cache = groups_at_once * (given.prompt_tokens + SIBLINGS * own) / given.times
    context = given.prompt_tokens * 2 + TURNS * (MOST + 2 * given.answer_tokens)
    block = BLOCK["cpu" if given.cpu else "gpu"]
    blocks = max(math.ceil(cache / block), math.ceil(context / block)) + 1
    settings = EngineSettings(
        max_model_len=context,
        max_requests=given.at_once,
        dtype="float32" if given.cpu else "bfloat16",
        kv_cache_gib=1.0 if given.cpu else 32.0,
        enforce_eager=given.cpu,
        worker_process=given.worker_process,
        admission=admission,
        engine_args={"num_gpu_blocks_override": blocks},
    )
    async with Launcher():
        policy = await PolicyActor.options(with_gpus=not given.cpu, start_seconds=600).as_service(
            model=str(model), settings=settings
        )
        agent = ("agents.token_agent:TokenAgent", {"model": str(model), "policy": ActorPolicy(policy.client)})
        envs = await EnvActor.options(num_replicas=given.envs).as_service(
            env="benchmarks.gpu.tool_waits:Waiter",
            options={"wait": given.wait, "answer": answer},
            agents={"policy": agent},
            limits=EpisodeLimits(max_turns=TURNS, max_turn_tokens=MOST, max_tokens=context),
            on_fault=SHRINK,
        )
        limit = asyncio.Semaphore(groups_at_once)

        async def group(index: int) -> Any:
            task = Task(prompt=({"role": "user", "content": f"Question {index}. {prompt}"},))
            async with limit:
                return await envs.route(
                    EnvActor.run_group,
                    task,
                    agent="policy",
                    count=SIBLINGS,
                    seed=1000 * index,
                    group_id=str(index),
                    env_options={},
                )

        await group(-1)  # so that everything has run once
        (before,) = await policy.fanout(PolicyActor.use)
        started = time.perf_counter()
        groups = await asyncio.gather(*(group(i) for i in range(given.episodes // SIBLINGS)))
        seconds = time.perf_counter() - started
        (after,) = await policy.fanout(PolicyActor.use)
    episodes = [episode for group in groups for episode in group.episodes]
    assert all(episode.outcome.is_valid for episode in episodes), episodes[0].error
    tokens = sum(episode.num_sampled for episode in episodes)
    did = {name: value - getattr(before, name) for name, value in asdict(after).items()}
    steps = did["steps"]
    return {
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "cache_tokens": blocks * block,
        "prefix_hit_rate": did["prefix_found"] / did["prefix_asked"],
        "prompt_tokens": did["prefix_asked"],
        "preemptions": did["preemptions"],
        "steps": steps,
        "seconds_per_step": did["step_seconds"] / steps,
        "share_in_steps": did["step_seconds"] / seconds,
        "requests_at_once": did["request_steps"] / steps,
        "places": did["place_steps"] / steps,
        "waiting": did["waiting_steps"] / steps,
        "cache_usage": did["cache_steps"] / steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="", help='0.6B by default, and "tiny" with --cpu')
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--at-once", type=int, default=256, help="episodes in flight")
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--times", type=float, default=4.0, help="how many times the cache they need")
    parser.add_argument("--wait", type=float, default=2.0, help="mean seconds of a tool")
    parser.add_argument("--prompt-tokens", type=int, default=0, help="2,048 by default, and 256 with --cpu")
    parser.add_argument("--answer-tokens", type=int, default=128, help="of a tool")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--worker-process", action="store_true", help="see EngineSettings")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.shape = given.shape or ("tiny" if given.cpu else "0.6B")
    given.prompt_tokens = given.prompt_tokens or (256 if given.cpu else 2048)
    with tempfile.TemporaryDirectory() as temp:
        model = Path(temp) / "model"
        make_random_model(given.shape, make_tokenizer(Path(temp) / "tokenizer"), model)
        found = {}
        for name, admission in (("with_admission", True), ("without_admission", False)):
            found[name] = asyncio.run(measure(model, given, admission=admission))
            print(name, json.dumps(found[name]), flush=True)
    result = {
        "machine": describe(),
        "settings": {name: value for name, value in vars(given).items() if name != "json"},
        **found,
        "ratio": found["with_admission"]["tokens_per_second"] / found["without_admission"]["tokens_per_second"],
    }
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
