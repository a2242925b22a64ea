"""Which weight store a run gets on one host, and what it is told about it."""

from __future__ import annotations

import re

import pytest

from forge_env.core.errors import UserError
from forge_env.registry import contrib
from forge_env.runtime.weights import CudaIpcStore, SharedMemoryStore, StoreRequest, choose_store
from forge_env.runtime.weights.one_host.shared_memory import has_room, room

MORE_THAN_THERE_IS = 2**50


@pytest.mark.parametrize(
    ("wanted", "size", "all_on_gpus", "kind", "sentence"),
    [
        (
            "auto",
            4 * 2**20,
            False,
            SharedMemoryStore,
            "shared memory: one host, and /dev/shm has room for 3 of 4.0 MiB",
        ),
        ("auto", 4, True, CudaIpcStore, "GPU memory (CUDA IPC): trainer and engine are on GPUs of one host"),
        ("cuda_ipc", 4, True, CudaIpcStore, "GPU memory (CUDA IPC): as --weights.store says"),
        ("shared_memory", 4, True, SharedMemoryStore, "shared memory: as --weights.store says"),
    ],
)
def test_the_fastest_that_can_be_had_or_the_one_that_is_wanted(
    wanted: str, size: int, all_on_gpus: bool, kind: type, sentence: str
) -> None:
    store, output = choose_store(wanted, StoreRequest(size=size, all_on_gpus=all_on_gpus))
    assert type(store) is kind
    assert output == f"through {sentence}"


@pytest.mark.parametrize(("card", "fits"), [(None, True), (80 * 2**30, True), (40 * 2**30, False)])
def test_8b_in_bfloat16_goes_from_gpu_to_gpu_where_a_fifth_of_one_takes_it(card: float | None, fits: bool) -> None:
    request = StoreRequest(size=2 * 8_190_735_360, all_on_gpus=True, card=card)
    assert bool(CudaIpcStore.reason(request)) is fits
    if not fits and has_room(3 * request.size):
        about = "through shared memory: a snapshot of 15.26 GiB is much for a GPU, and /dev/shm has room for 3 of "
        assert choose_store("auto", request)[1].startswith(about)


@pytest.mark.parametrize(
    ("wanted", "size", "hosts", "sentence"),
    [
        ("cuda_ipc", 4, 1, "cuda_ipc, and not every service that holds the weights has GPUs: take shared_memory, or "),
        ("cuda_ipc", 4, 3, "cuda_ipc, which serves one host, and the run has 3"),
        ("shared_memory", 4, 2, "shared_memory, which serves one host, and the run has 2"),
        ("shared_memory", MORE_THAN_THERE_IS, 1, "shared_memory, and /dev/shm has "),
        ("shared_memry", 4, 1, "'shared_memry', and there is no store of that name. Did you mean shared_memory? "),
    ],
)
def test_what_cannot_work_is_refused(wanted: str, size: int, hosts: int, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^--weights.store is {re.escape(sentence)}"):
        choose_store(wanted, StoreRequest(size=size, all_on_gpus=False, hosts=hosts))


def test_without_the_stores_of_contrib_none_of_them_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrib, "folders", dict)
    no_room = StoreRequest(size=MORE_THAN_THERE_IS, all_on_gpus=False)
    with pytest.raises(UserError, match=r"^--weights.store is shared_memory, and /dev/shm .*: make it larger \(.*\)$"):
        choose_store("shared_memory", no_room)
    store, output = choose_store("auto", no_room)
    assert type(store) is SharedMemoryStore and output == "through shared memory: no store that is here fits"
    with pytest.raises(UserError, match="^--weights.store is cuda_ipc, which serves one host, and the run has 2$"):
        choose_store("cuda_ipc", StoreRequest(size=4, all_on_gpus=True, hosts=2))
    with pytest.raises(UserError, match=r"Available: auto, cuda_ipc, shared_memory\.$"):
        choose_store("torchstore", no_room)


def test_room() -> None:
    assert has_room(0) and not has_room(room() + 2**40)
