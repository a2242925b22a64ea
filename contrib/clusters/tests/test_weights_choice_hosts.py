"""Which weight store a run of several hosts gets, or one without room on one host, and what it is told about it."""

from __future__ import annotations

import importlib.util
import re

import pytest

from contrib.clusters.nccl.store import NcclStore
from contrib.clusters.torchstore import TorchStoreWeights
from forge_env.core.errors import UserError
from forge_env.runtime.weights import StoreRequest, choose_store

MORE_THAN_THERE_IS = 2**50


@pytest.mark.parametrize(
    ("size", "all_on_gpus", "hosts", "kind", "sentence"),
    [
        (MORE_THAN_THERE_IS, False, 1, TorchStoreWeights,
         "TorchStore: 3 snapshots take 3,145,728.00 GiB, and /dev/shm has "),
        (4, False, 2, TorchStoreWeights, "TorchStore: the run has 2 hosts"),
        (4, True, 2, NcclStore, "NCCL: trainer and engine are on GPUs of 2 hosts"),
        (MORE_THAN_THERE_IS, True, 2, TorchStoreWeights,
         "TorchStore: the run has 2 hosts, and a snapshot of 1,048,576.00 GiB is much for a GPU"),
        (MORE_THAN_THERE_IS, True, 1, TorchStoreWeights, "TorchStore: 3 snapshots take 3,145,728.00 GiB, and "),
    ],
)  # fmt: skip
def test_the_fastest_that_can_be_had(size: int, all_on_gpus: bool, hosts: int, kind: type, sentence: str) -> None:
    store, output = choose_store("auto", StoreRequest(size=size, all_on_gpus=all_on_gpus, hosts=hosts))
    assert type(store) is kind
    assert output.startswith(f"through {sentence}")


@pytest.mark.parametrize(("wanted", "kind"), [("nccl", NcclStore), ("torchstore", TorchStoreWeights)])
def test_the_one_that_is_wanted(wanted: str, kind: type) -> None:
    store, output = choose_store(wanted, StoreRequest(size=4, all_on_gpus=True))
    assert type(store) is kind
    assert output.endswith(": as --weights.store says")


@pytest.mark.parametrize(
    ("wanted", "size", "hosts", "sentence"),
    [
        ("cuda_ipc", 4, 3, "cuda_ipc, which serves one host, and the run has 3: take torchstore"),
        ("nccl", 4, 1, "nccl, and not every service that holds the weights has GPUs: take shared_memory, or give "),
        ("nccl", 4, 2, "nccl, and not every service that holds the weights has GPUs: take torchstore, or give "),
        ("shared_memory", 4, 2, "shared_memory, which serves one host, and the run has 2: take torchstore"),
        (
            "ncl",
            4,
            2,
            "'ncl', and there is no store of that name. Did you mean nccl? Available: auto, cuda_ipc, nccl, ",
        ),
    ],
)
def test_what_cannot_work_is_refused(wanted: str, size: int, hosts: int, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^--weights.store is {re.escape(sentence)}"):
        choose_store(wanted, StoreRequest(size=size, all_on_gpus=False, hosts=hosts))


def test_what_has_no_room_is_told_of_another_store() -> None:
    request = StoreRequest(size=MORE_THAN_THERE_IS, all_on_gpus=False)
    with pytest.raises(UserError, match=r": make it larger \(docker run --shm-size\), or take torchstore$"):
        choose_store("shared_memory", request)


def test_nccl_is_offered_to_several_hosts_and_refused_where_gpus_are_shared() -> None:
    with pytest.raises(UserError, match="^--weights.store is cuda_ipc, which serves one host, .*: take nccl$"):
        choose_store("cuda_ipc", StoreRequest(size=4, all_on_gpus=True, hosts=2))
    with pytest.raises(UserError, match="^--weights.store is nccl, which joins different GPUs, .*: take cuda_ipc, or "):
        choose_store("nccl", StoreRequest(size=4, all_on_gpus=True, shared_gpus=True))


def test_torchstore_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="^--weights.store is torchstore, whose package torchstore is not installed: "):
        choose_store("torchstore", StoreRequest(size=4, all_on_gpus=False, hosts=2))
