"""The whole RL step against TorchTitan's own step with cross entropy, on the same model, tokens and GPU.

    python -m benchmarks.gpu.trainer [--shape 0.6B] [--sequences 8] [--attention flex] [--json FILE]
    python -m benchmarks.gpu.trainer --only rl --shape 8B --layers 12 --sequences 4 --length 8192 --row 8192 \
        --prompt 0.75 --micro-batch 8192 --checkpoint selective --attention varlen
    python -m benchmarks.gpu.trainer --lora 16 --shape 4B --sequences 2 --length 65536 --row 65536 --prompt 0.75 \
        --micro-batch 65536 --checkpoint full --attention varlen

The second line is the training of long episodes alone; FSDP's casts of the weights and the optimizer are part of it.
The third line trains adapters of rank 16 over a frozen model; its operations are those that adapters need.

Plain: the model's own output layer, all logits, TorchTitan's cross entropy, backward, clipping, fused AdamW.
RL: `TitanTrainer.train_step` with GRPO, logprobs, entropy and a KL penalty whose reference logprobs are given. Both
have the same rows, of 512 to 2,048 tokens or of --row, --prompt of each a prompt, and each attends to itself only. The
plain step has them in sequences of --length; the RL step as a run packs them, into one sequence of all tokens, or with
--rectangle into such of --length, which costs what does not fit. Both are compiled block by block, in bfloat16 over
float32 weights. MFU is by `step_flops`, against 989 TFLOP/s; the plain step computes all logits, which count there.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.flops import PEAK_FLOPS, step_flops
from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.machine import describe
from forge_env.core.episode import Row
from trainers.batching.batch import Sample
from trainers.families.table import read_shape
from trainers.grpo import GRPO, Config
from trainers.lora import Lora
from trainers.losses import GRPOLoss
from trainers.model.find import FoundModel
from trainers.setup.memory import trainer_memory
from trainers.setup.options.read_config import read_config
from trainers.setup.run_plan import RunPlan

from trainers.titan.trainer import TitanSettings, TitanTrainer  # isort: skip
from torchtitan.components.loss import cross_entropy_loss  # isort: skip
from torchtitan.distributed import utils as titan_dist  # isort: skip


def make_samples(given: argparse.Namespace, vocabulary: int) -> list[Sample]:
    """Rows that fill `given.sequences` of `given.length` tokens exactly."""
    rng = random.Random(0)
    samples = []
    for _ in range(given.sequences):
        left = given.length
        while left:
            if given.row:
                size = min(left, given.row)
            else:
                size = left if left <= 2048 else min(rng.randint(512, 2048), left - 512)
            left -= size
            prompt = max(1, int(size * given.prompt))
            ids = tuple(rng.randrange(vocabulary) for _ in range(size))
            mask = (False,) * prompt + (True,) * (size - prompt)
            logprobs = tuple(-rng.random() * sampled for sampled in mask)
            row = Row(token_ids=ids, loss_mask=mask, generator_logprobs=logprobs, versions=tuple(-1 + m for m in mask))
            reference = tuple(-rng.random() for _ in range(size - prompt))
            samples.append(Sample(rows=(row,), advantage=rng.gauss(0, 1), reference_logprobs=reference))
    return samples


def rows_of(given: argparse.Namespace, vocabulary: int) -> list[Row]:
    return [row for sample in make_samples(given, vocabulary) for row in sample.rows]


def plain_step(trainer: TitanTrainer, loss_of: Callable[..., Tensor], tokens: Tensor, positions: Tensor) -> None:
    """One optimizer step as TorchTitan's own trainer takes it."""
    loss = loss_of(trainer.model._run(tokens, positions, None), tokens.roll(-1, 1)) / tokens.numel()
    loss.backward()
    titan_dist.clip_grad_norm_(list(trainer.model.module.parameters()), 1.0)
    trainer._optimizer.step()
    trainer._optimizer.zero_grad()


def timed(step: Callable[[], object], *, warm: int, count: int) -> dict[str, float]:
    """Median seconds and peak bytes of `count` steps after `warm`; `first` is the very first, which compiles."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    for _ in range(warm - 1):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    peaks = {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}
    return {"first": first, "seconds": statistics.median(seconds), "slowest": max(seconds), **peaks}


def profile(step: Callable[[], object]) -> None:
    """Print the kernels and the calls of two steps that take longest."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
        step()
        torch.cuda.synchronize()
    for order in ("self_device_time_total", "self_cpu_time_total"):
        print(found.key_averages().table(sort_by=order, row_limit=24, max_name_column_width=70), flush=True)


def measure(folder: Path, given: argparse.Namespace, which: str) -> dict[str, Any]:
    """Seconds, memory and what they come to, of "rl" or of "plain"."""
    size = given.sequences * given.length
    settings = TitanSettings(
        compile=True,
        attention=given.attention,
        activation_checkpoint=given.checkpoint,
        reshard_after_forward=given.reshard,
        max_tokens_per_micro_batch=given.micro_batch or size,
        pack_length=given.length if given.rectangle else given.micro_batch or size,
        lora=Lora(rank=given.lora) if given.lora else None,
    )
    trainer = TitanTrainer(str(folder), settings)
    try:
        step = make_step(trainer, given, which)
        found = timed(step, warm=given.warm, count=given.timed)
        if given.profile:
            profile(step)
        hf = trainer.model.hf_config
        parameters = sum(value.numel() for value in trainer.model.module.parameters())
        shape, rows = read_shape(folder), rows_of(given, hf["vocab_size"])
        sampled = sum(int(row.loss_mask.sum()) for row in rows) if which == "rl" else size
        adapters = settings.lora.parameters(shape) if settings.lora else 0
        flops = step_flops(shape, [len(row.token_ids) for row in rows], sampled, adapters=adapters)
        return found | {
            "tokens_per_second": size / found["seconds"],
            "mfu": flops / found["seconds"] / PEAK_FLOPS,
            "parameters": parameters,
            "planned_bytes": planned_bytes(folder, given),
        }
    finally:
        trainer.close()
        del trainer
        gc.collect()
        torch.cuda.empty_cache()


def planned_bytes(folder: Path, given: argparse.Namespace) -> float:
    """What a run's plan counts for tensors: without CUDA's context and libraries."""
    options = [
        "--trainer.with_gpus",
        f"--training.max_tokens_per_micro_batch={given.micro_batch or given.sequences * given.length}",
        f"--training.activation_checkpoint={given.checkpoint}",
        *([f"--lora.rank={given.lora}"] if given.lora else []),
    ]
    model = FoundModel(shape=read_shape(folder), where="")
    config = read_config(Config, options)
    plan = RunPlan(user_config=config, config=config, defaults={}, algorithm=GRPO, model=model, objective=None)
    memory = trainer_memory(plan)
    return memory.total - memory.always["runtime"]


def make_step(trainer: TitanTrainer, given: argparse.Namespace, which: str) -> Callable[[], object]:
    vocabulary = trainer.model.hf_config["vocab_size"]
    if which == "rl":
        samples, loss = make_samples(given, vocabulary), GRPOLoss(beta=given.beta)
        return lambda: trainer.train_step(samples, loss)
    lm_head = trainer.model.module.get_submodule("lm_head")
    lm_head.forward = trainer.model._head._linear
    rows, shape = rows_of(given, vocabulary), (given.sequences, given.length)
    tokens = torch.tensor([token for row in rows for token in row.token_ids.tolist()], device="cuda").view(shape)
    positions = torch.cat([torch.arange(len(row.token_ids), device="cuda") for row in rows]).view(shape)
    loss_of = torch.compile(cross_entropy_loss)
    return lambda: plain_step(trainer, loss_of, tokens, positions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6B")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=0, help="of the model; 0 is as many as its shape has")
    parser.add_argument("--row", type=int, default=0, help="tokens of each row; 0 is 512 to 2,048")
    parser.add_argument("--prompt", type=float, default=0.125, help="share of a row that is not trained on")
    parser.add_argument("--reshard", default="default", choices=["default", "always", "never"])
    parser.add_argument("--attention", default="flex", choices=["flex", "varlen"])
    parser.add_argument("--checkpoint", default="none", help="activation_checkpoint of the trainer")
    parser.add_argument("--micro-batch", type=int, default=0, help="tokens of one pass of the RL step; 0 is all")
    parser.add_argument("--warm", type=int, default=3, help="steps before those that are timed")
    parser.add_argument("--timed", type=int, default=6, help="steps that are timed")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters; 0 trains all weights")
    parser.add_argument("--beta", type=float, default=0.04, help="of the KL penalty")
    parser.add_argument("--rectangle", action="store_true", help="pack into sequences of --length")
    parser.add_argument("--only", default="", choices=["", "rl", "plain"])
    parser.add_argument("--profile", action="store_true", help="print what two further steps are made of")
    parser.add_argument("--model", type=Path, help="made before by benchmarks.gpu.models, in the place of --shape")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.lora:
        given.only = "rl"
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")  # as a run's trainer has them
    with tempfile.TemporaryDirectory() as temp:
        folder = given.model or Path(temp) / "model"
        if given.model is None:
            sizes = {"layers": given.layers, "positions": max(40_960, given.length)}
            make_random_model(given.shape, make_tokenizer(Path(temp) / "tokenizer"), folder, **sizes)
        found: dict[str, Any] = {}
        for which in ("rl", "plain"):
            if given.only in ("", which):
                found[which] = measure(folder, given, which)
                print(which, json.dumps(found[which]), flush=True)
    if len(found) == 2:
        found["speed_ratio"] = found["rl"]["tokens_per_second"] / found["plain"]["tokens_per_second"]
        found["memory_ratio"] = found["rl"]["peak_bytes"] / found["plain"]["peak_bytes"]
    result = {
        "machine": describe(),
        "settings": {name: str(value) for name, value in vars(given).items() if name not in ("json", "model")},
        **found,
    }
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
