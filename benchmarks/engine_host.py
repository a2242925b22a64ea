"""What the engine's thread costs: vLLM's own way and the fast path, by turns on one engine, on a CPU or a GPU.

    python -m benchmarks.engine_host [--shape 0.6B | --model FOLDER] [--requests 512] [--tokens 128] [--plays 5]
                                     [--at-once 0] [--arms NAME,NAME] [--in-process] [--json FILE]

Groups of 16 requests with one prompt and a seed each, all at once, until the last token of each. With --at-once the
engine takes fewer requests at a time, of one half to three halves as many tokens, so that many steps begin one. An arm
is played once in every turn, after one turn that does not count, and each turn has the arms in another order. Figures
are medians:

    no_logprobs   bare `LLMEngine`, vLLM's own classes, no logprobs asked
    own           the same with logprobs
    logprobs      and agents/generator/fast_path/logprobs.py
    scheduler     and agents/generator/fast_path/scheduler.py
    all           and agents/generator/fast_path/admission.py
    run           the same through `VLLMEngine`, as a run asks: one call for each request

Of each arm: sampled tokens a second; milliseconds of a step; microseconds that the engine's thread takes for a request
of a step (its plan, its result, its outputs, without the worker) and to admit a request. `same` says whether the tokens
and logprobs are those of `own` to the last bit. In `run` requests come one by one, so that steps have other sizes,
which round otherwise on a GPU. Without --shape and --model the model is a tiny one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from agents.generator.engine import VLLMEngine
from agents.generator.requests import SampleRequest, completion_of, vllm_sampling
from agents.generator.settings import EngineSettings
from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.machine import describe
from forge_env.core.types import Sampling

GROUP, PROMPT = 16, 49
PARTS = ("output_processor", "scheduler", "manager", "engine")
ARMS = {"no_logprobs": 0, "own": 0, "logprobs": 1, "scheduler": 3, "all": 4, "run": 4}
"""By arm, how many of the engine's parts have the classes of the fast path."""


class Engine:
    """An engine that changes between vLLM's classes and those of the fast path."""

    def __init__(self, ours: VLLMEngine, given: argparse.Namespace) -> None:
        self.ours, self.given, self.plays = ours, given, 0
        self.engine: Any = ours._thread.engine
        scheduler = self.engine.engine_core.engine_core.scheduler
        self.parts = (self.engine.output_processor, scheduler, scheduler.kv_cache_manager, self.engine)
        self.fast = [type(part) for part in self.parts]
        self.seconds: dict[str, float] = defaultdict(float)
        for part, name in (
            (self.parts[0], "process_outputs"),
            (scheduler, "schedule"),
            (scheduler, "update_from_output"),
        ):
            setattr(part, name, self._timed(part, name))

    def _timed(self, part: Any, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return getattr(type(part), name)(part, *args, **kwargs)
            finally:
                self.seconds["host"] += time.perf_counter() - began

        return call

    def _dress(self, arm: str) -> None:
        for number, (part, fast) in enumerate(zip(self.parts, self.fast, strict=True)):
            own = next(kind for kind in fast.__mro__ if kind.__module__.startswith("vllm."))
            part.__class__ = fast if number < ARMS[arm] else own

    async def play(self, arm: str) -> dict[str, Any]:
        """One arm, once."""
        self.plays += 1
        spread = self.given.tokens // 2 if self.given.at_once else 0
        requests: list[Any] = [
            SampleRequest(
                f"{self.plays}/{number}",
                [1 + number // GROUP % 90, *range(3, 2 + PROMPT)],
                Sampling(max_tokens=self.given.tokens - spread + number * 7919 % (2 * spread + 1), seed=number),
                None,  # nobody waits for a bare engine
            )
            for number in range(self.given.requests)
        ]
        self.seconds.clear()
        await self.ours._command(lambda: self._dress(arm))
        if arm == "run":
            found = await self._through_ours(requests)
        else:
            found = await self.ours._command(lambda: self._bare(arm, requests))
        counted = {
            "tokens_per_second": found["tokens"] / found["seconds"],
            "ms_per_step": 1000 * found["in_steps"] / found["steps"],
        }
        counted["us_per_request_and_step"] = 1e6 * self.seconds["host"] / found["request_steps"]
        counted["us_per_admission"] = 1e6 * found["admission"] / len(requests)
        return counted | {"said": found["said"]}

    async def _through_ours(self, requests: list[SampleRequest]) -> dict[str, Any]:
        before, began = self.ours.stats, time.perf_counter()
        calls = (self.ours.generate(each.prompt_ids, each.sampling, each.request_id) for each in requests)
        completions = await asyncio.gather(*calls)
        seconds, after = time.perf_counter() - began, self.ours.stats
        return {
            "seconds": seconds,
            "steps": after.steps - before.steps,
            "in_steps": after.step_seconds - before.step_seconds,
            "request_steps": after.request_steps - before.request_steps,
            "admission": after.admission_seconds - before.admission_seconds,
            "tokens": sum(len(completion.token_ids) for completion in completions),
            "said": [_bits(completion) for completion in completions],
        }

    def _bare(self, arm: str, requests: list[SampleRequest]) -> dict[str, Any]:
        from vllm.inputs import TokensPrompt

        engine, steps, request_steps, began = self.engine, 0, 0, time.perf_counter()
        ended: list[Any] = []
        for each in requests:
            prompt = TokensPrompt(prompt_token_ids=each.prompt_ids)
            if ARMS[arm] == len(PARTS):
                engine.admit(each, prompt, None)
                continue
            params = vllm_sampling(each.sampling)
            if arm == "no_logprobs":
                params.logprobs = None
            engine.add_request(each.request_id, prompt, params)
        stepping = time.perf_counter()
        while engine.has_unfinished_requests():
            request_steps += engine.get_num_unfinished_requests()
            outputs = engine.step()
            steps += 1
            ended += outputs if arm == "no_logprobs" else [(output, completion_of(output)) for output in outputs]
        seconds, in_steps = time.perf_counter() - began, time.perf_counter() - stepping
        found: dict[str, Any] = {
            "seconds": seconds,
            "in_steps": in_steps,
            "steps": steps,
            "request_steps": request_steps,
            "said": None,
        }
        found |= {"admission": stepping - began, "tokens": sum(each.sampling.max_tokens for each in requests)}
        if arm != "no_logprobs":
            by_number = {int(output.request_id.split("/")[1]): _bits(completion) for output, completion in ended}
            found["said"] = [by_number[number] for number in range(len(requests))]
        return found


def _bits(completion: Any) -> tuple[bytes, bytes]:
    return completion.token_ids.tobytes(), completion.logprobs.tobytes()


async def measure(model: Path, given: argparse.Namespace) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    of_gpu: dict[str, Any] = {"dtype": "bfloat16", "kv_cache_gib": 16.0, "cuda_graphs": True}
    settings = EngineSettings(
        max_model_len=max(512, PROMPT + 2 * given.tokens),
        max_requests=given.at_once or given.requests,
        **(of_gpu | {"worker_process": not given.in_process} if on_gpu else {}),
    )
    ours = VLLMEngine(str(model), settings)
    await ours.start()
    try:
        engine, dice, plays = Engine(ours, given), random.Random(0), defaultdict(list)
        for turn in range(given.plays + 1):
            for arm in dice.sample(given.arms, len(given.arms)):
                found = await engine.play(arm)
                if turn:
                    plays[arm].append(found)
    finally:
        await ours.close()
    figures: dict[str, Any] = {}
    for arm, played in plays.items():
        named = [name for name in played[0] if name != "said"]
        figures[arm] = {name: statistics.median(play[name] for play in played) for name in named}
        figures[arm]["plays"] = [play["tokens_per_second"] for play in played]
        if "own" in plays and played[0]["said"]:
            figures[arm]["same"] = all(play["said"] == plays["own"][0]["said"] for play in played)
    for found in figures.values():
        for base in ("own", "no_logprobs", "all"):
            if base in figures:
                found[f"over_{base}"] = found["tokens_per_second"] / figures[base]["tokens_per_second"]
    return {arm: figures[arm] for arm in given.arms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", help="of benchmarks.gpu.models, with random weights")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--at-once", type=int, default=0)
    parser.add_argument("--plays", type=int, default=5)
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    parser.add_argument("--in-process", action="store_true", help="on a GPU: the worker in the engine's process")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        model = given.model or make_tokenizer(Path(temp) / "tiny")
        if given.shape:
            make_random_model(given.shape, model, Path(temp) / "model")
            model = Path(temp) / "model"
        found = asyncio.run(measure(model, given))
    settings = {name: value for name, value in vars(given).items() if name not in ("json", "model")}
    result = {"machine": describe(), "settings": settings, "arms": found}
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
