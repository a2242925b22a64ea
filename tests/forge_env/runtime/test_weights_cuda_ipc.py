"""Weights in GPU memory: another process reads where they lie, and nothing is read while it is written."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forge_env.core.errors import InvariantError, ServiceError

pytest.importorskip("torch")

import torch
from state_dicts import fingerprints, make_state_dict
from weights_process import WeightsProcess

from forge_env.runtime.process.visible_gpus import names_of
from forge_env.runtime.weights import CudaIpcStore, WeightStream
from forge_env.runtime.weights.one_host.store_folder import SHARED_MEMORY

ROOT = Path(__file__).parents[3]
DEADLINE_S = 120.0
gpu = pytest.mark.gpu
needs_gpus = pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")


def _environ(gpu: int) -> dict[str, str]:
    """Of another process, which sees one GPU."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": names_of([gpu])[0]}


@pytest_asyncio.fixture
async def store() -> AsyncIterator[CudaIpcStore]:
    store = CudaIpcStore()
    await store.open()
    yield store
    await store.close()
    assert not store.folder.exists()


def on_gpu(seed: int) -> dict[str, torch.Tensor]:
    return {name: tensor.cuda() for name, tensor in make_state_dict(seed).items()}


@contextmanager
def reader_on(store: CudaIpcStore, number: int) -> Iterator[WeightsProcess]:
    """Another process, which sees one GPU."""
    reader = WeightsProcess(store, gpu=number)
    try:
        yield reader
    finally:
        reader.close()


def told(answer: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    return answer["devices"], answer["fingerprints"]


def of_gpu(seed: int) -> tuple[list[str], dict[str, str]]:
    return ["cuda"], fingerprints(make_state_dict(seed))


@gpu
@needs_gpus
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=needs_two)])
async def test_another_process_reads_what_was_published(store: CudaIpcStore, number: int) -> None:
    """The reader's GPU may be another one than the trainer's, and is the first that it sees in any case."""
    with reader_on(store, number) as reader:
        for version in range(5):
            state_dict = on_gpu(version)
            taken = store.take(version, WeightStream.of(state_dict))
            for tensor in state_dict.values():  # the next step has begun
                tensor.zero_()
            await store.commit(taken)
            assert told(await reader.ask(f"fetch {version}")) == of_gpu(version)
        assert len(list(store.folder.glob("*.segment"))) == 1
        assert told(await reader.ask("fetch 4")) == of_gpu(4)
        assert await reader.ask("fetch 3") == "the weight store has no version 3; it has 4"
        with pytest.raises(InvariantError, match="^version 4 of the weights was published already"):
            store.take(4, WeightStream.of(on_gpu(4)))


@gpu
@needs_gpus
async def test_a_slow_reader_keeps_its_version(store: CudaIpcStore) -> None:
    with reader_on(store, 0) as reader:
        await store.publish(0, on_gpu(0))
        assert await reader.ask("hold 0") == "held"
        for version in range(1, 5):
            await store.publish(version, on_gpu(version))
        assert len(list(store.folder.glob("*.segment"))) == 2
        assert told(await reader.ask("release")) == of_gpu(0)


def shared_memory_files() -> set[str]:
    return set(os.listdir(SHARED_MEMORY))


PUBLISHER = """
import asyncio
import atexit
from state_dicts import make_state_dict
from forge_env.runtime.weights import CudaIpcStore

async def main():
    store = CudaIpcStore()
    await store.open()
    await store.publish(0, {name: tensor.cuda() for name, tensor in make_state_dict(0).items()})
    await store.close()

asyncio.run(main())
"""


@gpu
@needs_gpus
def test_a_process_that_has_published_ends_as_any_other_and_leaves_nothing() -> None:
    before = shared_memory_files()
    subprocess.run([sys.executable, "-c", PUBLISHER], env=_environ(0), check=True, timeout=DEADLINE_S)
    assert shared_memory_files() <= before


@gpu
@needs_gpus
async def test_nothing_is_left_in_shared_memory_of_a_trainer_that_is_killed() -> None:
    before = shared_memory_files()
    store = CudaIpcStore()
    await store.open()
    trainer, reader = (WeightsProcess(store, gpu=0) for _ in range(2))
    assert await trainer.ask("publish 0 0 0") == "published"
    assert told(await reader.ask("fetch 0")) == of_gpu(0)
    trainer.close()
    reader.close()
    await store.close()
    assert shared_memory_files() <= before


async def test_weights_that_are_not_on_a_gpu_are_refused_by_name(store: CudaIpcStore) -> None:
    with pytest.raises(ServiceError, match="^the weights are on cpu, .*: --weights.store shared_memory$"):
        store.take(0, WeightStream.of(make_state_dict(0)))
    assert list(store.folder.iterdir()) == []


async def test_what_torch_and_the_driver_need_to_this_process_s_end_stays_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without torch's file the process would abort, without the driver's no other store could hand anything over.

    The files of another process, which may be killed, go with the folder.
    """
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    store = CudaIpcStore()
    await store.open()
    counters = {name: store.folder.parent / f"{store.folder.name}_{name}" for name in ("own", "other")}
    for name, counter in counters.items():
        counter.touch()
        (store.folder / f"{name}.outside").write_text(str(counter))
    store._writable["own.segment"] = torch.empty(1)
    of_driver = [SHARED_MEMORY / f"cuda.shm.0.{pid:x}.1" for pid in (os.getpid(), os.getppid())]
    for file in of_driver:  # the CUDA driver leaves such a file for each process that shares an event
        file.touch()
    await store.close()
    assert not store.folder.exists()
    assert {name: counter.exists() for name, counter in counters.items()} == {"own": True, "other": False}
    assert [file.exists() for file in of_driver] == [True, True]
    for function in at_exit:
        function()
    assert [file.exists() for file in of_driver] == [False, True]
    for file in (counters["own"], of_driver[1]):
        file.unlink()
