"""The choice of a run's weight store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forge_env.core.errors import UserError
from forge_env.runtime.weights.nccl.store import NcclStore
from forge_env.runtime.weights.one_host.cuda_ipc import CudaIpcStore
from forge_env.runtime.weights.one_host.shared_memory import SHARED_MEMORY, SharedMemoryStore, has_room, room
from forge_env.runtime.weights.store import WeightStore
from forge_env.runtime.weights.torchstore import TorchStoreWeights

MOST_ON_GPU = 0.2  # largest share of a GPU for the version that the trainer's first rank keeps beside its own weights
USUAL_GPU = 80 * 2**30  # bytes, if the size is not known
# Shared memory must have room for this number: a slow replica may hold one version more than the store keeps.
SNAPSHOTS = SharedMemoryStore.keep + 1


StoreName = Literal["auto", "shared_memory", "cuda_ipc", "nccl", "torchstore"]


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """The options of the section `weights`."""

    store: StoreName = "auto"
    """How the weights get from the trainer to the engine; "auto" is the fastest that the run's processes can use."""


def choose_store(
    wanted: StoreName,
    *,
    size: int,
    all_on_gpus: bool,
    hosts: int = 1,
    shared_gpus: bool = False,
    card: float | None = None,
) -> tuple[WeightStore, str]:
    """Choose the weight store of a run; returns it, not open yet, and a sentence with the choice and its reason.

    Args:
        wanted: "shared_memory", "cuda_ipc", "nccl" or "torchstore"; "auto" chooses the fastest that fits.
        size: bytes of one snapshot.
        all_on_gpus: whether the trainer and all services that fetch the weights are on GPUs.
        hosts: the number of hosts of the processes.
        shared_gpus: whether two of these services share a GPU.
        card: bytes of each GPU; None if they are not known.

    Raises:
        UserError: the store that is wanted cannot work.
    """
    if wanted in ("shared_memory", "cuda_ipc") and hosts > 1:
        raise UserError(
            f"--weights.store is {wanted}, which serves one host, and the run has {hosts}: take "
            f"{'nccl' if all_on_gpus else 'torchstore'}"
        )
    if wanted in ("cuda_ipc", "nccl") and not all_on_gpus:
        raise UserError(
            f"--weights.store is {wanted}, and not every service that holds the weights has GPUs: take "
            f"{'shared_memory' if hosts == 1 else 'torchstore'}, or give trainer, generator and ref_model with_gpus"
        )
    if wanted == "nccl" and shared_gpus:
        raise UserError(
            "--weights.store is nccl, which joins different GPUs, and the services of this run share them: take "
            "cuda_ipc, or give each service GPUs of its own with --launcher.share_gpus no"
        )
    needed = SNAPSHOTS * size
    if wanted == "shared_memory" and not has_room(needed):
        raise UserError(
            f"--weights.store is shared_memory, and {SHARED_MEMORY} has {_gib(room())} free of the {_gib(needed)} that "
            f"{SNAPSHOTS} snapshots take: make it larger (docker run --shm-size), or take torchstore"
        )
    if wanted == "auto":
        wanted, why = _fastest(size, needed, all_on_gpus, hosts, card or USUAL_GPU)
    else:
        why = "as --weights.store says"
    return _STORES[wanted](), f"through {_NAMES[wanted]}: {why}"


def _fastest(size: int, needed: int, all_on_gpus: bool, hosts: int, card: float) -> tuple[StoreName, str]:
    fits = all_on_gpus and size <= MOST_ON_GPU * card
    too_much = f"a snapshot of {_gib(size)} is much for a GPU"
    if hosts > 1 and fits:
        return "nccl", f"trainer and engine are on GPUs of {hosts} hosts"
    if hosts > 1:
        return "torchstore", f"the run has {hosts} hosts" + (f", and {too_much}" if all_on_gpus else "")
    if fits:
        return "cuda_ipc", "trainer and engine are on GPUs of one host"
    if has_room(needed):
        where = too_much if all_on_gpus else "one host"
        return "shared_memory", f"{where}, and {SHARED_MEMORY} has room for {SNAPSHOTS} of {_gib(size)}"
    return "torchstore", f"{SNAPSHOTS} snapshots take {_gib(needed)}, and {SHARED_MEMORY} has {_gib(room())} free"


_STORES: dict[str, type[SharedMemoryStore | CudaIpcStore | NcclStore | TorchStoreWeights]] = {
    "shared_memory": SharedMemoryStore,
    "cuda_ipc": CudaIpcStore,
    "nccl": NcclStore,
    "torchstore": TorchStoreWeights,
}
_NAMES = {
    "shared_memory": "shared memory",
    "cuda_ipc": "GPU memory (CUDA IPC)",
    "nccl": "NCCL",
    "torchstore": "TorchStore",
}


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**28 else f"{size / 2**20:,.1f} MiB"
