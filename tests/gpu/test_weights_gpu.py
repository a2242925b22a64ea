"""Weights between processes with a GPU each, or one GPU for both: bit by bit, and in which time.

One snapshot of 0.95 GB is a model in the shape of Qwen3-0.6B in bfloat16. Every figure is the best of five.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
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

from forge_env.core.errors import ServiceError
from forge_env.runtime.weights import CudaIpcStore, NcclStore, SharedMemoryStore, WeightStore, WeightStream
from forge_env.runtime.weights.nccl.puller import PublisherLink

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU"),
]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
MIB = 906  # 0.95 GB
ROUNDS = 5
STORES: list[Any] = [CudaIpcStore, SharedMemoryStore, pytest.param(NcclStore, marks=needs_two)]


@asynccontextmanager
async def opened(kind: type[WeightStore]) -> AsyncIterator[WeightStore]:
    """The trainer's end of a store; `travelled` has the other."""
    store = kind()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def reader_of(store: WeightStore) -> WeightsProcess:
    """Another process, on a GPU of its own where the store needs that."""
    return WeightsProcess(store, gpu=1 if isinstance(store, NcclStore) else 0)


def on_gpu(seed: int, mib: int) -> dict[str, Any]:
    return {name: tensor.cuda() for name, tensor in make_weights(seed, mib).items()}


@pytest.mark.parametrize("kind", STORES)
async def test_another_process_has_the_weights_bit_by_bit(kind: type[WeightStore]) -> None:
    """What the trainer does to its weights after `take`, before any of it is sent, changes nothing."""
    async with opened(kind) as store:
        reader = reader_of(store)
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
        reader = reader_of(store)
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
    state_dict = on_gpu(0, MIB)
    seconds: dict[str, list[float]] = {"take": [], "commit": [], "fetch": []}
    async with opened(kind) as store:
        reader = reader_of(store)
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


@needs_two
async def test_sending_goes_on_beside_training_kernels() -> None:
    """Kernels are queued on the trainer's stream for seconds: a fetch does not wait for them."""
    factor = torch.randn(8192, 8192, device="cuda")
    async with opened(NcclStore) as store:
        reader = reader_of(store)
        try:
            await store.publish(0, on_gpu(0, 300))
            assert (await reader.ask("fetch 0"))["fingerprints"] == fingerprints(make_weights(0, 300))
            await store.publish(1, on_gpu(1, 300))
            for _ in range(400):
                factor @ factor
            queued = torch.cuda.Event()
            queued.record()
            assert (await reader.ask("fetch 1"))["fingerprints"] == fingerprints(make_weights(1, 300))
            print(
                f"when the fetch was over, the trainer's kernels were {'done' if queued.query() else 'still running'}"
            )
        finally:
            reader.close()


@needs_two
async def test_a_killed_puller_ends_no_trainer_and_stops_no_other() -> None:
    """NCCL's kernel waits for ever for a rank that has died; the publisher ends it."""
    async with opened(NcclStore) as store:
        assert isinstance(store, NcclStore)
        await store.publish(0, on_gpu(0, 300))
        dying = reader_of(store)
        try:
            assert await dying.ask("die 0") == "broken off"
            assert dying.ended() == -signal.SIGKILL
        finally:
            dying.close()
        assert store._publisher is not None
        deadline = time.monotonic() + 60.0
        while store._publisher._serving:
            assert time.monotonic() < deadline, "the publisher has not given it up"
            await asyncio.sleep(0.01)
        torch.cuda.synchronize()  # no kernel of it is left
        reader = reader_of(store)
        try:
            for version in (1, 2):
                await store.publish(version, on_gpu(version, 300))
                answer = await reader.ask(f"fetch {version}")
                assert answer["fingerprints"] == fingerprints(make_weights(version, 300))
            assert store._publisher.allocated == 1
        finally:
            reader.close()


@needs_two
async def test_a_killed_publisher_is_said_at_once() -> None:
    """To a process on the first GPU, from one on the second."""
    async with opened(NcclStore) as store:
        trainer = WeightsProcess(store, gpu=1)
        engine = pickle.loads(pickle.dumps(store))
        try:
            assert await trainer.ask("publish 0 0 300") == "published"
            async with engine.fetch(0) as weights:
                arrived = fingerprints({name: tensor.cpu() for name, tensor in weights.items()})
            assert arrived == fingerprints(make_weights(0, 300))
            link = await asyncio.to_thread(PublisherLink, engine._prepared, version=0, gpu=0, seconds=60.0)
            layout = link.request(0)
            trainer.process.kill()
            with pytest.raises((OSError, RuntimeError)):
                await asyncio.to_thread(link.receive, layout)
            link.close()
            torch.cuda.synchronize()  # no kernel waits for the dead
            with pytest.raises(ServiceError, match="^the trainer, who has the weights, does not answer at "):
                async with engine.fetch(0):
                    pass
        finally:
            trainer.close()
            await engine.close()


async def test_two_processes_on_one_gpu_are_refused_by_name() -> None:
    async with opened(NcclStore) as store:
        reader = WeightsProcess(store, gpu=0)
        try:
            await store.publish(0, on_gpu(0, 1))
            assert "this process is on the trainer's own GPU, and NCCL joins different ones" in await reader.ask(
                "fetch 0"
            )
        finally:
            reader.close()
