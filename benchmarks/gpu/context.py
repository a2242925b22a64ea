"""Context parallelism over two GPUs against one: a model as wide as Qwen3-8B with 4 layers, on rows of 32k tokens.

    python -m benchmarks.gpu.context [--cases bfloat16 ...] [--json FILE]

One optimizer step each of GRPO and of GSPO, whose loss couples all tokens of an episode, on an episode as long as a
micro-batch and two that fill one together. Loss, gradient norm and the logprobs before the steps of two ranks are
compared with those of one; seconds are those of the second step.

--cpu takes a tiny shape, short rows and float32 on a CPU: the same course, without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.gpu.runs import end_on_sigterm
from benchmarks.machine import describe
from forge_env.core.episode import Row
from trainers.batching.batch import Sample
from trainers.losses import GRPOLoss, GSPOLoss
from trainers.titan.parallel import init_process_group
from trainers.titan.settings import TitanSettings
from trainers.titan.trainer import TitanTrainer

ROOT = Path(__file__).parents[2]
LONGEST = 32_768
SETTINGS = TitanSettings(learning_rate=1e-5, eps=1e-6, activation_checkpoint="selective")
CASES: dict[str, dict[str, Any]] = {
    "bfloat16": {"max_tokens_per_micro_batch": LONGEST},
    "bfloat16, packed": {"max_tokens_per_micro_batch": LONGEST, "pack_length": LONGEST},
    "float32": {"dtype": "float32", "max_tokens_per_micro_batch": LONGEST // 8},
    "float32, packed": {"dtype": "float32", "max_tokens_per_micro_batch": LONGEST // 8, "pack_length": LONGEST // 8},
}
CPU_CASE = "float32, on a CPU"
CPU_CASES = {CPU_CASE: {"dtype": "float32", "max_tokens_per_micro_batch": 256, "pack_length": 256}}
RANK_S = 600.0


def make_samples(longest: int, vocabulary: int) -> list[Sample]:
    """An episode as long as a micro-batch, and two that fill one together; half of the tokens are sampled."""
    rng = random.Random(0)

    def row(length: int) -> Row:
        mask = tuple(place > 0 and place // 64 % 2 == 1 for place in range(length))
        return Row(
            token_ids=tuple(rng.randrange(vocabulary) for _ in range(length)),
            loss_mask=mask,
            generator_logprobs=tuple(rng.gauss(-12.0, 0.1) if sampled else 0.0 for sampled in mask),
            versions=tuple(0 if sampled else -1 for sampled in mask),
        )

    advantages = {longest: 1.0, longest * 5 // 8: -0.5, longest * 3 // 8: 0.25}
    return [Sample(rows=(row(length),), advantage=advantage) for length, advantage in advantages.items()]


def be_a_rank(folder: Path, cp: int, cases: Sequence[str]) -> None:
    """Take the steps of every case, and write what they gave."""
    init_process_group()
    on_gpu = torch.cuda.is_available()
    results = {}
    for case in cases:
        changes = (CASES | CPU_CASES)[case]
        trainer = TitanTrainer(folder / "model", dataclasses.replace(SETTINGS, context_parallel_degree=cp, **changes))
        samples = make_samples(changes["max_tokens_per_micro_batch"], trainer.model.config.vocab_size)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        logprobs = [values.tolist() for values in trainer.logprobs(samples)]
        losses = GRPOLoss(aggregation="token"), GSPOLoss(clip_low=0.2, clip_high=0.2)
        steps = [trainer.train_step(samples, loss) for loss in losses]
        gib = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
        print(f"cp {cp}, {case}: {gib:.1f} GiB, {steps[-1]['seconds']:.2f} s", flush=True)
        results[case] = {"logprobs": logprobs, "steps": steps, "gib": gib}
        del trainer
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
    (folder / f"cp {cp} {os.environ['RANK']}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


def run_ranks(folder: Path, cp: int, cases: Sequence[str]) -> list[dict[str, Any]]:
    """What each of `cp` processes found, on the model in `folder`/model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "benchmarks.gpu.context", "--rank", str(folder), str(cp), "--cases", *cases]
    ranks = []
    for rank in map(str, range(cp)):
        env = os.environ | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(cp), "MASTER_ADDR": "127.0.0.1"}
        env |= {"MASTER_PORT": port, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        ranks.append(subprocess.Popen(command, env=env, cwd=ROOT))
    try:
        codes = [process.wait(timeout=RANK_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    if any(codes):
        raise RuntimeError(f"the ranks of context parallelism over {cp} ended with {codes}")
    return [json.loads((folder / f"cp {cp} {rank}.json").read_text()) for rank in range(cp)]


def compared(alone: dict[str, Any], together: dict[str, Any]) -> dict[str, Any]:
    """One rank's findings of a case beside those of one of two."""
    pairs = [
        pair for both in zip(alone["logprobs"], together["logprobs"], strict=True) for pair in zip(*both, strict=True)
    ]
    found: dict[str, Any] = {"mean_abs_logprob_difference": sum(abs(one - other) for one, other in pairs) / len(pairs)}
    for name in ("loss", "grad_norm", "tokens", "skipped", "seconds"):
        found[name] = {"one": [step[name] for step in alone["steps"]], "two": [s[name] for s in together["steps"]]}
    return found | {"gib": {"one": alone["gib"], "two": together["gib"]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=[*CASES, *CPU_CASES])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        be_a_rank(Path(given.rank[0]), int(given.rank[1]), given.cases)
        return
    cases = given.cases or list(CPU_CASES if given.cpu else CASES)
    with tempfile.TemporaryDirectory() as temp:
        shape, layers = ("tiny", 0) if given.cpu else ("8B", 4)
        make_random_model(shape, make_tokenizer(Path(temp) / "tokenizer"), Path(temp) / "model", layers=layers)
        (alone,), together = (run_ranks(Path(temp), degree, cases) for degree in (1, 2))
    found = {case: compared(alone[case], together[0][case]) for case in cases}
    result = {"machine": describe(), "model": f"{shape}, layers cut to {layers or 'none'}", "cases": found}
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    end_on_sigterm()
    main()
