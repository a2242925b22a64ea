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
import tempfile
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


async def sample(folder: Path, *, rows: int, length: int, routes: bool) -> list[Completion]:
    """Sample rows of at most `length` tokens in all, with the experts of each token if there are any."""
    settings = EngineSettings(
        max_model_len=length, max_requests=rows, dtype="bfloat16", kv_cache_gib=24.0, cuda_graphs=True, gather_s=0.0
    )
    engine = VLLMEngine(str(folder), replace(settings, return_routes=routes))
    await engine.start()
    try:
        sampling = Sampling(max_tokens=length - PROMPT)
        prompts = ([1000 + 7 * row + i for i in range(PROMPT)] for row in range(rows))
        return await asyncio.gather(
            *(engine.generate(prompt, sampling, f"row/{row}") for row, prompt in enumerate(prompts))
        )
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


def by_depth(rows: list[np.ndarray]) -> list[dict[str, float]]:
    """The mean difference and K3, in nats, of each part of the rows."""
    parts = []
    for start, end in pairwise(DEPTHS):
        part = np.concatenate([row[max(0, start - PROMPT) : end - PROMPT] for row in rows])
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
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp) / "model"
        parameters = make_random_model(given.shape, make_tokenizer(Path(temp) / "t"), folder, layers=given.layers)
        has_experts = read_shape(folder).num_experts > 0
        completions = asyncio.run(sample(folder, rows=given.rows, length=given.length, routes=has_experts))
        result: dict[str, Any] = {"machine": describe(), "shape": given.shape, "parameters": parameters}
        for name, replay in ({"depths": False} | ({"depths_replayed": True} if has_experts else {})).items():
            result[name] = by_depth(differences(folder, completions, replay=replay))
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
