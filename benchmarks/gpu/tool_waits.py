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
from pathlib import Path
from typing import Any

from agents.generator.start import CPU_BLOCK_TOKENS, EngineSettings
from agents.renderer.rendering import Renderer
from benchmarks.gpu.groups import LEAST, MOST, SIBLINGS, engine_figures, play_groups, turn_of_any_length
from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.machine import describe
from forge_env.core.env import Env
from forge_env.core.protocols import Conversation
from forge_env.core.types import Action, EpisodeLimits, Message, Task

TURNS, SIGMA = 6, 1.0
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
        return list(options["task"].prompt), turn_of_any_length(self.random)

    async def step(self, action: Action) -> Any:
        self.turn += 1
        if self.turn < TURNS:  # the mean of a lognormal is exp(mu + sigma ** 2 / 2)
            await asyncio.sleep(self.random.lognormvariate(math.log(self.wait) - SIGMA**2 / 2, SIGMA))
        news = [{"role": "user", "content": self.answer}]
        return news, 0.0, self.turn == TURNS, False, turn_of_any_length(self.random)


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
        kv_cache_gib=1.0 if given.cpu else given.kv_cache_gib,
        enforce_eager=given.cpu,
        worker_process=given.worker_process,
        admission=admission,
        engine_args={"num_gpu_blocks_override": blocks},
    )
    played = await play_groups(
        model,
        settings,
        env="benchmarks.gpu.tool_waits:Waiter",
        options={"wait": given.wait, "answer": answer},
        limits=EpisodeLimits(max_turns=TURNS, max_turn_tokens=MOST, max_tokens=context),
        task=lambda i: Task(prompt=({"role": "user", "content": f"Question {i}. {prompt}"},)),
        groups=given.episodes // SIBLINGS,
        at_once=groups_at_once,
        env_processes=given.envs,
        with_gpus=not given.cpu,
    )
    did = played.engine
    return {
        "tokens": played.tokens,
        "seconds": played.seconds,
        "engine_ready_seconds": played.engine_ready,
        "tokens_per_second": played.tokens / played.seconds,
        "cache_tokens": blocks * block,
        "prefix_hit_rate": did.prefix_found / did.prefix_asked,
        "prompt_tokens": did.prefix_asked,
        "preemptions": did.preemptions,
        **engine_figures(did, played.seconds),
        "places": did.place_steps / did.steps,
        "waiting": did.waiting_steps / did.steps,
        "cache_usage": did.cache_steps / did.steps,
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
    parser.add_argument("--kv-cache-gib", type=float, default=32.0)
    parser.add_argument("--model", type=Path, help="made before by benchmarks.gpu.models")
    parser.add_argument("--only", choices=["with_admission", "without_admission"], help="one of both, without a ratio")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.shape = given.shape or ("tiny" if given.cpu else "0.6B")
    given.prompt_tokens = given.prompt_tokens or (256 if given.cpu else 2048)
    with tempfile.TemporaryDirectory() as temp:
        model = given.model or Path(temp) / "model"
        if given.model is None:
            make_random_model(given.shape, make_tokenizer(Path(temp) / "tokenizer"), model)
        found = {}
        for name, admission in (("with_admission", True), ("without_admission", False)):
            if given.only not in (None, name):
                continue
            found[name] = asyncio.run(measure(model, given, admission=admission))
            print(name, json.dumps(found[name]), flush=True)
    result: dict[str, Any] = {
        "machine": describe(),
        "settings": {name: value for name, value in vars(given).items() if name not in ("json", "model")},
        **found,
    }
    if not given.only:
        speeds = [found[name]["tokens_per_second"] for name in ("with_admission", "without_admission")]
        result["ratio"] = speeds[0] / speeds[1]
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
