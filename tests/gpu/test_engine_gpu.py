"""The engine on a GPU, in bfloat16 with CUDA graphs, at the shape of Qwen3-0.6B: it agrees with the trainer, takes
weights over while it runs, and what arrives is bit by bit what was sent."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file

from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings
from benchmarks.engine_host import measure
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling
from tests.helpers.engine_rows import samples_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU"),
]
SETTINGS = EngineSettings(
    max_model_len=1024,
    max_requests=128,
    dtype="bfloat16",
    kv_cache_gib=8.0,
    cuda_graphs=True,
    gather_s=0.0,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(qwen3: Path) -> AsyncIterator[VLLMEngine]:
    engine = VLLMEngine(str(qwen3), SETTINGS)
    await engine.start()
    yield engine
    await engine.close()


async def test_the_fast_path_changes_no_bit(qwen3: Path) -> None:
    """Before the fixture: vLLM has one group of processes, which an engine that is closed takes down."""
    arms = {"arms": ["own", "all"], "plays": 1, "at_once": 0, "in_process": False}
    found = await measure(qwen3, argparse.Namespace(requests=128, tokens=64, **arms))
    assert found["all"]["same"]


@pytest.mark.parametrize("count", [5, 64, 100])
async def test_logprobs_agree_in_bfloat16(engine: VLLMEngine, qwen3: Path, count: int) -> None:
    """Over 64 sampled tokens of each: mean |difference| below 0.02 nats, mean K3 below 1e-3.

    5 and 100 requests at once are padded to the next size that has a CUDA graph.
    """
    completions = await _sample(engine, count=count, tokens=64)
    gap = torch.cat(_gaps(qwen3, completions))
    k3 = (torch.exp(gap) - 1 - gap).mean().item()
    print(f"mean |difference| {gap.abs().mean():.5f}, largest {gap.abs().max():.4f}, K3 {k3:.2e}")
    assert len(gap) == count * 64
    assert gap.abs().mean() < 0.02
    assert k3 < 1e-3


async def test_a_step_takes_as_many_tokens_as_the_plan_counts(engine: VLLMEngine) -> None:
    assert engine._thread.engine.vllm_config.scheduler_config.max_num_batched_tokens == SETTINGS.step_tokens == 16384


async def test_a_group_computes_its_prompt_once(engine: VLLMEngine) -> None:
    """Its members come at once, and the next step is scheduled while a step runs."""
    block, length, before = engine._thread.engine.vllm_config.cache_config.block_size, 900, engine.stats
    # No block of it is one of another test's prompts.
    prompt, sampling = [1011 + i for i in range(length)], Sampling(max_tokens=16)
    await asyncio.gather(*(engine.generate(prompt, sampling, f"member/{i}") for i in range(16)))
    assert engine.stats.prefix_asked - before.prefix_asked == 16 * length
    assert engine.stats.prefix_found - before.prefix_found == 15 * (length // block * block)
    assert engine.stats.preemptions == 0


async def test_weights_arrive_bit_by_bit_while_requests_run(engine: VLLMEngine, qwen3: Path) -> None:
    """From float32 tensors on the GPU, as the trainer publishes them; CUDA graphs stay valid."""
    old = load_file(qwen3 / "model.safetensors")
    new = {name: (value.float() * 1.1).cuda() for name, value in old.items()}
    before = await _greedy(engine)
    running = [
        asyncio.ensure_future(engine.generate([i + 1, 2], Sampling(max_tokens=400, seed=i), f"long/{i}"))
        for i in range(32)
    ]
    await engine.generate([1], Sampling(max_tokens=1), "marker")  # by then the others run
    version = engine.version
    started = asyncio.get_running_loop().time()
    await engine.update_weights(version + 1, new)
    print(f"swap of 0.6B float32 into the live engine: {asyncio.get_running_loop().time() - started:.3f} s")
    carried = await asyncio.gather(*running)
    for completion in carried:
        assert [span for span, _ in completion.versions] == [version, version + 1]
        assert len(completion.token_ids) == 400
    # The last token that is said to be of the old weights is, and the next one is not.
    ends = [completion.versions[0][1] for completion in carried]
    gaps = [gap.abs() for gap in _gaps(qwen3, carried)]
    last = torch.stack([gap[end - 1] for gap, end in zip(gaps, ends, strict=True)]).mean()
    first = torch.stack([gap[end] for gap, end in zip(gaps, ends, strict=True)]).mean()
    print(f"|logprob - that of the old weights|: {last:.4f} before the swap, {first:.4f} after it")
    assert last < 0.03 and first > 2 * last
    found = await engine._command(lambda: engine._thread.engine.collective_rpc(_weights_of_worker))
    arrived = found[0]
    for name, value in _as_in_vllm(new).items():
        assert torch.equal(arrived[name], value.bfloat16().cpu()), name
    swapped = await _greedy(engine)
    assert swapped != before
    await engine.update_weights(version + 2, {name: value.cuda() for name, value in old.items()})
    assert await _greedy(engine) == before, "the same weights, through the same graphs, say the same"


def _gaps(model: Path, completions: list[Completion]) -> list[torch.Tensor]:
    """The trainer's logprobs minus the engine's, of each sampled token."""
    from trainers.titan.trainer import TitanSettings, TitanTrainer

    trainer = TitanTrainer(str(model), TitanSettings())
    try:
        recomputed = trainer.logprobs(samples_of(completions), 1.0)
    finally:
        trainer.close()
        torch.cuda.empty_cache()
    return [torch.tensor(ours) - torch.tensor(c.logprobs) for ours, c in zip(recomputed, completions, strict=True)]


def _weights_of_worker(worker: Any) -> dict[str, Any]:
    return {name: value.detach().cpu() for name, value in worker.model_runner.model.named_parameters()}


def _as_in_vllm(weights: dict[str, Any]) -> dict[str, Any]:
    """Under the names of vLLM's Qwen3, which stacks what is computed together."""
    stacked = dict(weights)
    for name in weights:
        if "q_proj" in name:
            parts = [stacked.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
            stacked[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        if "gate_proj" in name:
            parts = [stacked.pop(name.replace("gate_proj", part)) for part in ("gate_proj", "up_proj")]
            stacked[name.replace("gate_proj", "gate_up_proj")] = torch.cat(parts)
    return stacked


async def _sample(engine: VLLMEngine, *, count: int, tokens: int) -> list[Completion]:
    sampling = [Sampling(max_tokens=tokens, seed=i) for i in range(count)]
    calls = [engine.generate([*range(i, i + 40)], s, f"sample/{i}") for i, s in enumerate(sampling)]
    return list(await asyncio.gather(*calls))


async def _greedy(engine: VLLMEngine) -> list[tuple[int, ...]]:
    greedy = Sampling(max_tokens=32, temperature=0.0)
    calls = [engine.generate([i + 1, 50, 60, *range(70, 90)], greedy, f"greedy/{i}") for i in range(4)]
    return [tuple(completion.token_ids) for completion in await asyncio.gather(*calls)]
