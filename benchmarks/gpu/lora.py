"""An engine with an adapter: its speed against the same engine without one, and the time of a swap.

    python -m benchmarks.gpu.lora [--shape 8B | --model FOLDER] [--rank 16] [--requests 256] [--tokens 256] [--cpu]
                                  [--kernels FOLDER] [--compare] [--json FILE]

A model in a shape of Qwen3 with random weights gets requests that sample all of their tokens, all at once. The engines
start side by side, each in a process of its own, and are then measured one after the other. With --compare there are
two more: one with vLLM's own settings of its LoRA kernels, and one whose adapter computes beside the matrix, in a
stream of its own. One batch triggers
compilation; the next ones are timed, and the best counts. The adapter alone is published, and taken by the live engine
between two steps, several times: while it is idle, and while it samples. "--cpu" is a tiny model.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import multiprocessing
import os
import random
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings
from benchmarks.gpu.models import VOCABULARY, make_random_model, make_tokenizer
from benchmarks.machine import describe
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling
from forge_env.rollout.lockstep import Request
from forge_env.runtime.weights import CudaIpcStore, SharedMemoryStore
from trainers.families.shape import ModelShape
from trainers.families.table import read_shape
from trainers.lora import TARGETS, target_sizes

BATCHES, SWAPS = 3, 12
PROMPT_TOKENS = 128
KERNELS = "VLLM_TUNED_CONFIG_FOLDER"
COMPARED = {"vllm_settings": {KERNELS: "/nowhere"}, "second_stream": {"VLLM_LORA_ENABLE_DUAL_STREAM": "1"}}


def random_adapter(shape: ModelShape, rank: int, device: str) -> dict[str, Tensor]:
    """An adapter of all targets under PEFT's names, in bfloat16, whose product is small."""
    tensors = {}
    for layer in range(shape.num_hidden_layers):
        for name, (inputs, outputs) in target_sizes(shape).items():
            room = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            start = f"base_model.model.model.layers.{layer}.{room}.{name}"
            tensors[f"{start}.lora_A.weight"] = torch.randn(rank, inputs, device=device).bfloat16() * 0.01
            tensors[f"{start}.lora_B.weight"] = torch.randn(outputs, rank, device=device).bfloat16() * 0.01
    return tensors


async def batch_seconds(engine: VLLMEngine, given: argparse.Namespace, seed: int) -> float:
    """Seconds of all requests; each has a prompt of its own, so that no prefix is in the cache."""
    rng = random.Random(seed)
    words = 1024 if given.cpu else VOCABULARY
    sampling = Sampling(max_tokens=given.tokens)
    requests = [
        Request(tuple(rng.randrange(words) for _ in range(PROMPT_TOKENS)), sampling, f"{seed}/{number}")
        for number in range(given.requests)
    ]
    started = time.perf_counter()
    answers = await engine.generate_batch(requests)
    seconds = time.perf_counter() - started
    assert all(isinstance(answer, Completion) and len(answer.token_ids) == given.tokens for answer in answers)
    return seconds


async def measure(model: Path, settings: EngineSettings, given: argparse.Namespace, turn: Connection) -> None:
    """Start an engine, wait for its turn, and send its tokens a second, and the swaps of its adapter."""
    engine = VLLMEngine(str(model), settings)
    started = time.perf_counter()
    await engine.start()
    result: dict[str, Any] = {"start_seconds": time.perf_counter() - started}
    try:
        turn.send("ready")
        turn.recv()
        if settings.lora_rank:
            result["kernels"] = os.environ.get(KERNELS, "")
            result["swap"] = await measure_swaps(engine, model, given)
        batches = [await batch_seconds(engine, given, seed) for seed in range(1 + BATCHES)]
        result["batch_seconds"] = batches
        result["tokens_per_second"] = given.requests * given.tokens / min(batches[1:])
        turn.send(result)
    finally:
        await engine.close()


def measure_in_process(
    model: Path, settings: EngineSettings, given: argparse.Namespace, turn: Connection, environ: dict[str, str]
) -> None:
    os.environ |= environ
    asyncio.run(measure(model, settings, given, turn))


def measure_all(model: Path, settings: EngineSettings, given: argparse.Namespace) -> dict[str, Any]:
    """All engines start at once; each is measured while the others are idle.

    Raises:
        EOFError: an engine's process ended early; its output says why.
    """
    spawn = multiprocessing.get_context("spawn")
    processes, turns = [], {}
    tuned = {KERNELS: str(given.kernels.resolve())} if given.kernels else {}
    engines: dict[str, dict[str, str]] = {"without": {}, "with_adapter": tuned}
    if given.compare:
        engines |= {name: tuned | environ for name, environ in COMPARED.items()}
    for name, environ in engines.items():
        turns[name], theirs = spawn.Pipe()
        settings_of = dataclasses.replace(settings, lora_rank=0 if name == "without" else given.rank)
        processes.append(spawn.Process(target=measure_in_process, args=(model, settings_of, given, theirs, environ)))
        processes[-1].start()
        theirs.close()
    result: dict[str, Any] = {}
    try:
        for name, turn in list(turns.items()):
            try:
                turn.recv()
            except EOFError:
                if name not in COMPARED:
                    raise
                result[name] = {"failed": "at its start"}
                turns.pop(name)
        for name, turn in turns.items():
            turn.send("go")
            result[name] = turn.recv()
            print(name, json.dumps(result[name]), flush=True)
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.join()
    return result


async def measure_swaps(engine: VLLMEngine, model: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Publish an adapter and let the engine take it, again and again; the last one stays."""
    device = "cpu" if given.cpu else "cuda"
    tensors = random_adapter(read_shape(model), given.rank, device)
    result: dict[str, Any] = {"bytes": sum(tensor.nbytes for tensor in tensors.values())}
    store = SharedMemoryStore() if given.cpu else CudaIpcStore()
    await store.open()
    try:
        version = 0
        for when in ("idle", "sampling"):
            work = asyncio.create_task(batch_seconds(engine, given, 100)) if when == "sampling" else None
            swaps = []
            for _ in range(SWAPS):
                if work is not None:  # one request that is answered: the batch is under way
                    await engine.generate([1, 2, 3], Sampling(max_tokens=4), f"before {version}")
                version += 1
                await store.publish(version, tensors)
                started = time.perf_counter()
                seconds = await engine.pull_weights(version, store)
                swaps.append({**seconds, "whole": time.perf_counter() - started})
            if work is not None:
                result["batch_was_under_way"] = not work.done()
                await work
            result[when] = swaps
            result[f"median_{when}_seconds"] = sorted(swap["fetch"] + swap["swap"] for swap in swaps)[SWAPS // 2]
    finally:
        await store.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="", help='8B by default, and "tiny" with --cpu')
    parser.add_argument("--model", type=Path, help="made before by benchmarks.gpu.models, in this shape")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256, help="sampled by each request")
    parser.add_argument("--kernels", type=Path, help="settings by benchmarks.gpu.lora_kernels; else the engine's own")
    parser.add_argument("--compare", action="store_true", help="with two more engines, see above")
    parser.add_argument("--kv-cache-gib", type=float, default=24.0)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.shape = given.shape or ("tiny" if given.cpu else "8B")
    settings = EngineSettings(
        max_model_len=PROMPT_TOKENS + given.tokens + 16,
        max_requests=given.requests + 1,
        dtype="float32" if given.cpu else "bfloat16",
        kv_cache_gib=1.0 if given.cpu else given.kv_cache_gib,
        cuda_graphs=not given.cpu,
        worker_process=not given.cpu,
    )
    with tempfile.TemporaryDirectory() as temp:
        model = given.model or Path(temp) / "model"
        if given.model is None:
            make_random_model(given.shape, make_tokenizer(Path(temp) / "tokenizer"), model)
        result: dict[str, Any] = {
            "machine": describe(),
            "settings": {
                name: value for name, value in vars(given).items() if name not in ("json", "model", "kernels")
            },
            "targets": list(TARGETS),
        }
        result |= measure_all(model, settings, given)
    speeds = {name: found["tokens_per_second"] for name, found in result.items() if "tokens_per_second" in found}
    result["ratios"] = {name: speed / speeds["without"] for name, speed in speeds.items()}
    result["ratio"] = result["ratios"]["with_adapter"]
    print(json.dumps({name: value for name, value in result.items() if not isinstance(value, dict)}, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
