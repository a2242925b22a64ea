"""How far trainer and engine are apart on a mixture-of-experts model, with and without routing replay.

    python -m benchmarks.routing_replay [--model FOLDER] [--trainers bfloat16] [--eager] [--json FILE]

A vLLM engine in bfloat16 samples answers and returns the experts of every token; a trainer in float32, and one in
bfloat16, computes the logprobs of the same tokens, once with these experts and once with its own. Without --model it is
a tiny Qwen3-MoE with random weights. The figures are over all sampled tokens: mean and maximum of |logprob difference|,
the estimate k3 of the KL divergence, and the share of rows of the router (a token and a layer) whose experts differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings
from benchmarks.machine import describe
from envs.math import Math
from forge_env.core.episode import Row
from forge_env.core.turn import Completion
from forge_env.core.types import Message, Sampling
from forge_env.rollout.lockstep import Request
from trainers.batching.batch import Sample
from trainers.losses import SFTLoss
from trainers.model.sizes import MODEL_SIZES
from trainers.model.tiny_model import make_tiny_model
from trainers.titan.trainer import TitanSettings, TitanTrainer

REQUESTS, PROMPT_TOKENS, TOKENS, WORDS = 64, 24, 48, 300


async def sample(model: Path, *, eager: bool) -> list[Completion]:
    """Completions of random prompts, of an engine in bfloat16."""
    settings = EngineSettings(
        max_model_len=512, max_requests=REQUESTS, dtype="bfloat16", return_routes=True, cuda_graphs=not eager
    )
    engine = VLLMEngine(str(model), settings)
    await engine.start()
    try:
        words = np.random.default_rng(0).integers(0, WORDS, (REQUESTS, PROMPT_TOKENS))
        requests = [
            Request(tuple(map(int, prompt)), Sampling(max_tokens=TOKENS, seed=number), str(number))
            for number, prompt in enumerate(words)
        ]
        answers = await engine.generate_batch(requests)
    finally:
        await engine.close()
    completions = [answer for answer in answers if isinstance(answer, Completion)]
    assert len(completions) == REQUESTS, answers
    return completions


def row_of(completion: Completion, *, routes: bool) -> Row:
    prompt, sampled = len(completion.prompt_ids), len(completion.token_ids)
    return Row(
        token_ids=np.concatenate([completion.prompt_ids, completion.token_ids]),
        loss_mask=np.arange(prompt + sampled) >= prompt,
        generator_logprobs=np.concatenate([np.zeros(prompt), completion.logprobs]),
        versions=np.repeat([-1, 0], [prompt, sampled]),
        routes=completion.routes if routes else (),
    )


def compare(model: Path, dtype: str, completions: list[Completion]) -> dict[str, Any]:
    """A trainer's logprobs beside the engine's, with replay and without, and the share of rows that differ."""
    trainer = TitanTrainer(
        model,
        TitanSettings(
            dtype=dtype, learning_rate=0.0, optimizer_state="bfloat16" if torch.cuda.is_available() else "float32"
        ),
    )
    engine = np.concatenate([completion.logprobs for completion in completions])
    result: dict[str, Any] = {}
    try:
        for name, routes in (("without", False), ("replay", True)):
            samples = [Sample(rows=(row_of(completion, routes=routes),)) for completion in completions]
            ours = np.concatenate(trainer.logprobs(samples))
            log_ratio = ours - engine
            result[name] = {
                "mean": float(np.abs(log_ratio).mean()),
                "max": float(np.abs(log_ratio).max()),
                "k3": float((np.expm1(log_ratio) - log_ratio).mean()),
            }
        result["experts_differ"] = trainer.train_step(samples, SFTLoss())["replay/experts_differ"]
    finally:
        trainer.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Qwen3-MoE in Hugging Face format")
    parser.add_argument("--trainers", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs, as always on a CPU")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.eager = given.eager or not torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as temp:
        model = given.model or Path(temp) / "model"
        if given.model is None:
            chat: list[Message] = [{"role": "user", "content": "12 + 30?"}, {"role": "assistant", "content": "42"}]
            make_tiny_model(model, [(chat, Math().tools)], seed=0, size=MODEL_SIZES["tiny-moe"])
        started = time.perf_counter()
        completions = asyncio.run(sample(model, eager=given.eager))
        seconds = {"engine": time.perf_counter() - started}
        trainers = {}
        for dtype in given.trainers:
            started = time.perf_counter()
            trainers[dtype] = compare(model, dtype, completions)
            seconds[dtype] = time.perf_counter() - started
            print(dtype, json.dumps(trainers[dtype]), seconds, flush=True)
    result = {
        "machine": describe(),
        "model": str(given.model or "tiny-moe, random weights"),
        "tokens": sum(len(completion.token_ids) for completion in completions),
        "engine": "bfloat16",
        "seconds": seconds,
        "trainers": trainers,
    }
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
