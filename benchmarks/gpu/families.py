"""A family of models on a card: how far engine and trainer are apart, by depth of the row.

    python -m benchmarks.gpu.families [--shape gpt-oss] [--layers 4] [--length 16384] [--json FILE]

The model has random weights. The engine samples rows of --length tokens in bfloat16, and the trainer computes their
logprobs, in bfloat16 over float32 weights. K3 is the mean of exp(d) - 1 - d, where d is the trainer's logprob minus the
engine's, over the tokens of each part of a row. `benchmarks.gpu.trainer --shape` has the speed and the memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings
from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.machine import describe
from forge_env.core.episode import Episode, Row
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling
from trainers.batching.batch import Sample
from trainers.families.table import read_shape
from trainers.titan.trainer import TitanSettings, TitanTrainer

DEPTHS = (0, 2048, 4096, 8192, 16384)
PROMPT = 64


def sample(folder: Path, given: argparse.Namespace, *, routes: bool) -> tuple[list[Completion], float]:
    """What `_sample` returns, from a process of its own: a run too keeps engine and trainer apart."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run_sample, folder, given, routes).result()


def _run_sample(folder: Path, given: argparse.Namespace, routes: bool) -> tuple[list[Completion], float]:
    return asyncio.run(_sample(folder, given, routes=routes))


async def _sample(folder: Path, given: argparse.Namespace, *, routes: bool) -> tuple[list[Completion], float]:
    """Sample rows of at most --length tokens in all, with the experts of each token if there are any; also tokens/s."""
    rows, length = given.rows, given.length
    args = {"gdn_prefill_backend": given.prefill} if given.prefill else {}
    settings = EngineSettings(
        max_model_len=length,
        max_requests=rows,
        dtype="bfloat16",
        kv_cache_gib=24.0,
        cuda_graphs=True,
        gather_s=0.0,
        engine_args=args,
        return_routes=routes,
    )
    engine = VLLMEngine(str(folder), settings)
    await engine.start()
    try:
        sampling = Sampling(max_tokens=given.sampled or length - PROMPT)
        longest = length - given.sampled if given.sampled else PROMPT
        sizes = (PROMPT + row * (longest - PROMPT) // max(1, rows - 1) for row in range(rows))
        prompts = ([1000 + (7 * row + i) % 20_000 for i in range(size)] for row, size in enumerate(sizes))
        started = time.perf_counter()
        found = await asyncio.gather(
            *(engine.generate(prompt, sampling, f"row/{row}") for row, prompt in enumerate(prompts))
        )
        return found, sum(len(each.token_ids) for each in found) / (time.perf_counter() - started)
    finally:
        await engine.close()


def differences(folder: Path, completions: list[Completion], *, replay: bool) -> list[np.ndarray]:
    """For each row the trainer's logprobs minus the engine's, of its sampled tokens; `replay` takes its experts."""
    trainer = TitanTrainer(str(folder), TitanSettings(dtype="bfloat16"))
    rows = [replace(row_of(each), routes=each.routes if replay else ()) for each in completions]
    try:
        recomputed = trainer.logprobs([Sample(rows=(row,), advantage=0.0) for row in rows], 1.0)
    finally:
        trainer.close()
    return [np.asarray(ours) - each.logprobs for ours, each in zip(recomputed, completions, strict=True)]


def row_of(completion: Completion) -> Row:
    ids = {"prompt_ids": completion.prompt_ids, "response_ids": completion.token_ids}
    return Episode(**ids, logprobs=completion.logprobs, reward=0.0).rows[0]


def by_depth(rows: list[np.ndarray], prompts: list[int]) -> list[dict[str, float]]:
    """The mean difference and K3, in nats, of each part of the rows, which begin with prompts of these sizes."""
    parts = []
    for start, end in pairwise(DEPTHS):
        sampled = zip(rows, prompts, strict=True)
        part = np.concatenate([row[max(0, start - prompt) : max(0, end - prompt)] for row, prompt in sampled])
        if part.size:
            k3 = float((np.exp(part) - 1 - part).mean())
            sizes = {"from": start, "to": end, "tokens": part.size}
            parts.append({**sizes, "mean_abs": float(np.abs(part).mean()), "k3": k3})
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="gpt-oss")
    parser.add_argument("--layers", type=int, default=4, help="of the model; 0 is as many as its shape has")
    parser.add_argument("--length", type=int, default=16384, help="tokens of the longest row")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--sampled", type=int, default=0, help="tokens after prompts up to --length; 0: short prompts")
    parser.add_argument("--prefill", default="", help="gdn_prefill_backend of vLLM, for linear attention")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp) / "model"
        parameters = make_random_model(given.shape, make_tokenizer(Path(temp) / "t"), folder, layers=given.layers)
        has_experts = read_shape(folder).num_experts > 0
        completions, speed = sample(folder, given, routes=has_experts)
        result: dict[str, Any] = {"machine": describe(), "shape": given.shape, "parameters": parameters}
        result |= {"prefill": given.prefill or "default", "engine_tokens_per_second": speed}
        for name, replay in ({"depths": False} | ({"depths_replayed": True} if has_experts else {})).items():
            found = differences(folder, completions, replay=replay)
            result[name] = by_depth(found, [len(each.prompt_ids) for each in completions])
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
