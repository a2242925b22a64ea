"""Which weight store a run gets, and what it is told about it."""

from __future__ import annotations

import re

import pytest

from forge_env.core.errors import UserError
from forge_env.runtime.weights import (
    CudaIpcStore,
    NcclStore,
    SharedMemoryStore,
    TorchStoreWeights,
    choice,
    choose_store,
)
from forge_env.runtime.weights.one_host.shared_memory import has_room, room

MORE_THAN_THERE_IS = 2**50


@pytest.mark.parametrize(
    ("size", "all_on_gpus", "hosts", "kind", "sentence"),
    [
        (4 * 2**20, False, 1, SharedMemoryStore,
         "shared memory: one host, and /dev/shm has room for 3 of 4.0 MiB"),
        (MORE_THAN_THERE_IS, False, 1, TorchStoreWeights,
         "TorchStore: 3 snapshots take 3,145,728.00 GiB, and /dev/shm has "),
        (4, False, 2, TorchStoreWeights, "TorchStore: the run has 2 hosts"),
        (4, True, 2, NcclStore, "NCCL: trainer and engine are on GPUs of 2 hosts"),
        (MORE_THAN_THERE_IS, True, 2, TorchStoreWeights,
         "TorchStore: the run has 2 hosts, and a snapshot of 1,048,576.00 GiB is much for a GPU"),
        (4, True, 1, CudaIpcStore, "GPU memory (CUDA IPC): trainer and engine are on GPUs of one host"),
        (MORE_THAN_THERE_IS, True, 1, TorchStoreWeights, "TorchStore: 3 snapshots take 3,145,728.00 GiB, and "),
    ],
)  # fmt: skip
def test_the_fastest_that_can_be_had(size: int, all_on_gpus: bool, hosts: int, kind: type, sentence: str) -> None:
    store, output = choose_store("auto", size=size, all_on_gpus=all_on_gpus, hosts=hosts)
    assert type(store) is kind
    assert output.startswith(f"through {sentence}")


@pytest.mark.parametrize(
    ("card", "kind"), [(None, CudaIpcStore), (80 * 2**30, CudaIpcStore), (40 * 2**30, SharedMemoryStore)]
)
def test_8b_in_bfloat16_goes_from_gpu_to_gpu_where_a_fifth_of_one_takes_it(card: float | None, kind: type) -> None:
    if kind is SharedMemoryStore and not has_room(3 * 2 * 8_190_735_360):
        kind = TorchStoreWeights
    assert type(choose_store("auto", size=2 * 8_190_735_360, all_on_gpus=True, card=card)[0]) is kind


@pytest.mark.parametrize("wanted", sorted(choice._STORES))
def test_the_one_that_is_wanted(wanted: str) -> None:
    store, output = choose_store(wanted, size=4, all_on_gpus=True)
    assert type(store) is choice._STORES[wanted]
    assert output.endswith(": as --weights.store says")


@pytest.mark.parametrize(
    ("wanted", "size", "hosts", "sentence"),
    [
        ("cuda_ipc", 4, 1, "--weights.store is cuda_ipc, and not every service that holds the weights has GPUs"),
        ("cuda_ipc", 4, 3, "--weights.store is cuda_ipc, which serves one host, and the run has 3: take torchstore"),
        ("nccl", 4, 1, "--weights.store is nccl, and not every service that holds the weights has GPUs: take shared_"),
        ("nccl", 4, 2, "--weights.store is nccl, and not every service that holds the weights has GPUs: take torchst"),
        ("shared_memory", 4, 2, "--weights.store is shared_memory, which serves one host, and the run has 2"),
        ("shared_memory", MORE_THAN_THERE_IS, 1, "--weights.store is shared_memory, and /dev/shm has "),
    ],
)
def test_what_cannot_work_is_refused(wanted: str, size: int, hosts: int, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}"):
        choose_store(wanted, size=size, all_on_gpus=False, hosts=hosts)


def test_nccl_is_offered_to_several_hosts_and_refused_where_gpus_are_shared() -> None:
    with pytest.raises(UserError, match="^--weights.store is cuda_ipc, which serves one host, .*: take nccl$"):
        choose_store("cuda_ipc", size=4, all_on_gpus=True, hosts=2)
    with pytest.raises(UserError, match="^--weights.store is nccl, which joins different GPUs, .*: take cuda_ipc, or "):
        choose_store("nccl", size=4, all_on_gpus=True, shared_gpus=True)


def test_room() -> None:
    assert has_room(0) and not has_room(room() + 2**40)
