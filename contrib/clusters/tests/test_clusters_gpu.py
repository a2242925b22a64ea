"""Weights by NCCL between processes with a GPU each, and whole runs whose weights go by NCCL and TorchStore."""

from __future__ import annotations

import asyncio
import pickle
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from nccl_process import NcclProcess
from state_dicts import fingerprints
from weights_process import make_weights

from contrib.clusters.nccl.puller import PublisherLink
from contrib.clusters.nccl.store import NcclStore
from forge_env.core.errors import ServiceError
from tests.gpu.conftest import ends_on_sigterm  # noqa: F401 (a fixture)
from tests.gpu.test_runs_gpu import check, run
from tests.gpu.test_two_gpus import SHORT
from tests.gpu.test_weights_gpu import check_bit_by_bit, measure, on_gpu, opened

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(420),
    pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU"),
]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")


@needs_two
@pytest.mark.parametrize(("store", "title"), [("nccl", "NCCL"), ("torchstore", "TorchStore")])
def test_a_run_of_the_tiny_model(store: str, title: str, tmp_path: Path) -> None:
    output = run(tmp_path / "run", *SHORT, "--weights.store", store)
    (line,) = [line for line in output.splitlines() if "weights: through" in line]
    assert title in line
    check(tmp_path / "run", steps=4)


@needs_two
async def test_another_process_has_the_weights_bit_by_bit() -> None:
    await check_bit_by_bit(NcclStore, gpu=1)


@needs_two
async def test_how_long_it_takes() -> None:
    await measure(NcclStore, gpu=1)


@needs_two
async def test_sending_goes_on_beside_training_kernels() -> None:
    """Kernels are queued on the trainer's stream for seconds: a fetch does not wait for them."""
    factor = torch.randn(8192, 8192, device="cuda")
    async with opened(NcclStore) as store:
        reader = NcclProcess(store, gpu=1)
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
        dying = NcclProcess(store, gpu=1)
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
        reader = NcclProcess(store, gpu=1)
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
        trainer = NcclProcess(store, gpu=1)
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
        reader = NcclProcess(store, gpu=0)
        try:
            await store.publish(0, on_gpu(0, 1))
            assert "this process is on the trainer's own GPU, and NCCL joins different ones" in await reader.ask(
                "fetch 0"
            )
        finally:
            reader.close()
