"""A whole model with experts, in the shape of Qwen3-30B-A3B: its weights through the streamed publish, and a LoRA step.

    python -m benchmarks.gpu.models /tmp/30B --shape 30B-A3B
    python -m benchmarks.gpu.experts publish --model /tmp/30B [--ranks 2] [--json FILE]
    python -m benchmarks.gpu.experts step --model /tmp/30B [--json FILE] [OPTIONS OF THE RUN]

- publish: the trainer of all weights, sharded over the GPUs by FSDP, gives snapshots in bfloat16 to the store, tensor
  by tensor: seconds, and the memory that it takes on each GPU beside the model and the snapshot.
- step: a run with adapters of rank 16 on attention, the engine on one GPU and the trainer on the other, which sends
  the merged weights of the whole model after each step: seconds, memory, mismatch with routing replay.

--cpu takes a tiny model with experts: the same course, without a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.large import run
from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.gpu.runs import end_on_sigterm, records
from benchmarks.machine import describe
from forge_env.runtime.weights import CudaIpcStore, SharedMemoryStore, TensorLayout, WeightStore, WeightStream
from trainers.titan.parallel import init_process_group
from trainers.titan.settings import TitanSettings
from trainers.titan.trainer import TitanTrainer

ROOT = Path(__file__).parents[2]
RANK_S = 500.0
ROUNDS = 3
ADAPTERS = ("--lora.rank=16", "--lora.targets=q_proj,k_proj,v_proj,o_proj")
APART = (
    "--launcher.share_gpus=no", "--weights.store=cuda_ipc", "--generator.cuda_graphs=false",
    "--services.generator.kv_cache_gib=16", "--training.activation_checkpoint=full",
)  # fmt: skip


def be_a_rank(model: Path) -> None:
    """Load the model, publish it some times, and print what that took on this rank."""
    init_process_group()
    on_gpu, rank = torch.cuda.is_available(), dist.get_rank()
    started = time.perf_counter()
    trainer = TitanTrainer(model, TitanSettings())
    found: dict[str, Any] = {"rank": rank, "load_seconds": time.perf_counter() - started, "model_gib": _gib(on_gpu)}
    layout = TensorLayout.of(trainer.model.weights.layout(torch.bfloat16))
    found |= {"snapshot_gib": layout.size / 2**30, "tensors": len(trainer.model.weights.layout(torch.bfloat16))}
    try:
        found["rounds"] = asyncio.run(_publish(trainer, layout, is_first=rank == 0, on_gpu=on_gpu))
    finally:
        trainer.close()
    if on_gpu:
        found["peak_of_the_process_gib"] = torch.cuda.max_memory_reserved() / 2**30
    print(f"RANK {json.dumps(found)}", flush=True)


async def _publish(trainer: TitanTrainer, layout: TensorLayout, *, is_first: bool, on_gpu: bool) -> list[Any]:
    store: WeightStore | None = None
    if is_first:
        store = CudaIpcStore() if on_gpu else SharedMemoryStore()
        await store.open()
    rounds = []
    try:
        for version in range(ROUNDS):
            dist.barrier()
            if on_gpu:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            before, started = _gib(on_gpu), time.perf_counter()
            with trainer.model.weights.stream(torch.bfloat16) as tensors:
                taken = _take(store, version, WeightStream(layout, trainer.device, tensors)) if store else None
            took = time.perf_counter() - started
            if store is not None:
                await store.commit(taken)
            grown = torch.cuda.max_memory_allocated() / 2**30 - before if on_gpu else 0.0
            rounds.append({"take": took, "commit": time.perf_counter() - started - took, "grown_gib": grown})
    finally:
        if store is not None:
            await store.close()
    return rounds


def _take(store: WeightStore, version: int, weights: WeightStream) -> Any:
    return store.take(version, weights)


def _gib(on_gpu: bool) -> float:
    return torch.cuda.memory_allocated() / 2**30 if on_gpu else 0.0


def publish(model: Path, given: argparse.Namespace) -> dict[str, Any]:
    """One process on each GPU, as many as there are ranks.

    Raises:
        RuntimeError: a rank failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "benchmarks.gpu.experts", "rank", "--model", str(model)]
    ranks = []
    for rank in map(str, range(given.ranks)):
        env = os.environ | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(given.ranks)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        ranks.append(subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=RANK_S)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    lines = [line for output in outputs for line in output.splitlines() if line.startswith("RANK ")]
    if len(lines) != given.ranks:
        raise RuntimeError(f"the ranks ended with {[process.returncode for process in ranks]}")
    return {"ranks": [json.loads(line.removeprefix("RANK ")) for line in lines]}


def step(model: Path, given: argparse.Namespace) -> dict[str, Any]:
    """A run of some steps with adapters, by `python -m trainers.grpo`."""
    options = [*ADAPTERS, "--training.packing", *(() if given.cpu else APART)]
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp) / "run"
        found = run("LoRA step", folder, model, options, given, steps=given.steps, left_out=min(1, given.steps - 1))
        found["steps"] = records(folder, "train")
    return found


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=["publish", "step", "rank"])
    parser.add_argument("--model", type=Path, help="made before by benchmarks.gpu.models")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=2048, help="of an episode")
    parser.add_argument("--sampled", type=float, default=0.25, help="share of them that the model samples")
    parser.add_argument("--turns", type=int, default=2, help="of an episode")
    parser.add_argument("--groups", type=int, default=4, help="of 8 episodes, in a step")
    parser.add_argument("--minutes", type=float, default=6.0, help="of the run at most")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    given, options = parser.parse_known_args(arguments)
    given.options = options
    if given.case == "rank":
        be_a_rank(given.model)
        return
    if given.cpu:
        given.tokens, given.turns, given.groups = 256, 2, 1
    with tempfile.TemporaryDirectory() as temp:
        model = given.model or Path(temp) / "model"
        if given.model is None:
            tokenizer = make_tokenizer(Path(temp) / "tokenizer")
            make_random_model("tiny-moe" if given.cpu else "30B-A3B", tokenizer, model)
        found = {"publish": publish, "step": step}[given.case](model, given)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
    result = {"machine": describe(), "settings": settings, given.case: found}
    print(json.dumps(result, indent=2), flush=True)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    end_on_sigterm()
    main(sys.argv[1:])
