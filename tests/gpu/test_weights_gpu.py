"""Weights between processes with one GPU for both: bit by bit, and in which time.

One snapshot of 0.95 GB is a model in the shape of Qwen3-0.6B in bfloat16. Every figure is the best of five.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "forge_env" / "runtime"))

from state_dicts import fingerprints
from weights_process import WeightsProcess, make_weights

from forge_env.runtime.weights import CudaIpcStore, SharedMemoryStore, WeightStore, WeightStream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU"),
]
MIB = 906  # 0.95 GB
ROUNDS = 5
STORES = [CudaIpcStore, SharedMemoryStore]


@asynccontextmanager
async def opened(kind: type[WeightStore]) -> AsyncIterator[WeightStore]:
    """The trainer's end of a store; `travelled` has the other."""
    store = kind()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def on_gpu(seed: int, mib: int) -> dict[str, Any]:
    return {name: tensor.cuda() for name, tensor in make_weights(seed, mib).items()}


@pytest.mark.parametrize("kind", STORES)
async def test_another_process_has_the_weights_bit_by_bit(kind: type[WeightStore]) -> None:
    await check_bit_by_bit(kind, gpu=0)


async def check_bit_by_bit(kind: type[WeightStore], *, gpu: int) -> None:
    """What the trainer does to its weights after `take`, before any of it is sent, changes nothing."""
    async with opened(kind) as store:
        reader = WeightsProcess(store, gpu=gpu)
        try:
            for version in range(4):
                state_dict = on_gpu(version, 300)
                taken = store.take(version, WeightStream.of(state_dict))
                for tensor in state_dict.values():
                    tensor.zero_()
                await store.commit(taken)
                answer = await reader.ask(f"fetch {version}")
                assert answer["devices"] == ["cuda"]
                assert answer["fingerprints"] == fingerprints(make_weights(version, 300))
            kept = ", ".join(map(str, range(4 - kind.keep, 4)))
            assert f"it has {kept}" in await reader.ask("fetch 0")
        finally:
            reader.close()


@pytest.fixture
def growing() -> Iterator[str]:
    """The allocator's settings of a run's trainer."""
    before = torch._C._accelerator_getAllocatorSettings()
    settings = "expandable_segments:True"
    torch._C._accelerator_setAllocatorSettings(settings)
    yield settings
    torch._C._accelerator_setAllocatorSettings(before or "expandable_segments:False")


async def test_weights_are_handed_over_from_a_trainer_whose_memory_grows_in_place(growing: str) -> None:
    async with opened(CudaIpcStore) as store:
        reader = WeightsProcess(store, gpu=0)
        try:
            for version in range(3):
                await store.publish(version, on_gpu(version, 300))
                answer = await reader.ask(f"fetch {version}")
                assert answer["fingerprints"] == fingerprints(make_weights(version, 300))
            assert torch._C._accelerator_getAllocatorSettings() == growing
        finally:
            reader.close()


async def test_the_gpu_itself_copies_to_shared_memory_and_from_it() -> None:
    async with opened(SharedMemoryStore) as store:
        await store.publish(0, on_gpu(0, 16))
        assert all(flat.is_pinned() for flat in store._writable.values())  # type: ignore[attr-defined]
        async with store.fetch(0) as state_dict:
            assert all(tensor.is_pinned() for tensor in state_dict.values())


@pytest.mark.parametrize("kind", STORES)
async def test_how_long_it_takes(kind: type[WeightStore]) -> None:
    await measure(kind, gpu=0)


async def measure(kind: type[WeightStore], *, gpu: int) -> None:
    state_dict = on_gpu(0, MIB)
    seconds: dict[str, list[float]] = {"take": [], "commit": [], "fetch": []}
    async with opened(kind) as store:
        reader = WeightsProcess(store, gpu=gpu)
        try:
            for version in range(ROUNDS + 2):  # memory and communicator are made in the first two
                torch.cuda.synchronize()
                started = time.perf_counter()
                taken = store.take(version, WeightStream.of(state_dict))
                torch.cuda.synchronize()
                seconds["take"].append(time.perf_counter() - started)
                started = time.perf_counter()
                await store.commit(taken)
                seconds["commit"].append(time.perf_counter() - started)
                answer = await reader.ask(f"fetch {version}")
                seconds["fetch"].append(answer["seconds"])
            assert answer["fingerprints"] == fingerprints(make_weights(0, MIB))
        finally:
            reader.close()
    best = ", ".join(f"{name} {min(values[2:]):.4f} s" for name, values in seconds.items())
    print(f"{kind.__name__}, {MIB * 2**20 / 1e9:.2f} GB: {best}; the first fetch {seconds['fetch'][0]:.2f} s")
