"""The weight stores: one protocol, `WeightStore`, and three ways to carry the weights. `choose_store` takes one.

- shared.py: shared memory, for the processes of one host.
- cuda_ipc.py: from GPU to GPU, for the processes of one host.
- torchstore.py: TorchStore, for several hosts.

The first two are segments.py, snapshots in pieces of the host's memory, with a folder (folder.py) that says where.
"""

from __future__ import annotations

from forge_env.errors import UserError
from forge_env.runtime.weights.cuda_ipc import CudaIpcStore
from forge_env.runtime.weights.shared import SHARED_MEMORY, SharedMemoryStore, has_room, room
from forge_env.runtime.weights.store import KEEP, WeightStore
from forge_env.runtime.weights.torchstore import TorchStoreWeights

__all__ = ["KEEP", "CudaIpcStore", "SharedMemoryStore", "TorchStoreWeights", "WeightStore", "choose_store"]

MOST_ON_GPU = 16 * 2**30  # bytes of the versions that the trainer's first rank keeps beside its own weights
SNAPSHOTS = KEEP + 1  # that shared memory must have room for: a slow replica may hold one more than there are versions


def choose_store(wanted: str, *, size: int, all_on_gpus: bool, hosts: int = 1) -> tuple[WeightStore, str]:
    """Choose the weight store of a run; returns it, not open yet, and a sentence that says which one and why.

    Args:
        wanted: "shared_memory", "torchstore" or "cuda_ipc"; "auto" chooses the fastest that fits.
        size: bytes of one snapshot.
        all_on_gpus: whether the trainer and all that fetch the weights are on GPUs.
        hosts: over which the processes are spread.

    Raises:
        UserError: when the one that is wanted cannot work.
    """
    if wanted in ("shared_memory", "cuda_ipc") and hosts > 1:
        raise UserError(f"--weights.store is {wanted}, which serves one host, and the run has {hosts}: take torchstore")
    if wanted == "cuda_ipc" and not all_on_gpus:
        raise UserError(
            "--weights.store is cuda_ipc, and not every service that holds the weights has GPUs: "
            "take shared_memory, or give trainer, generator and ref_model with_gpus"
        )
    needed = SNAPSHOTS * size
    if wanted == "shared_memory" and not has_room(needed):
        raise UserError(
            f"--weights.store is shared_memory, and {SHARED_MEMORY} has {_gib(room())} free of the {_gib(needed)} that "
            f"{SNAPSHOTS} snapshots take: make it larger (docker run --shm-size), or take torchstore"
        )
    if wanted == "auto":
        wanted, why = _fastest(size, needed, all_on_gpus, hosts)
    else:
        why = "as --weights.store says"
    return _STORES[wanted](), f"weights go through {_NAMES[wanted]}: {why}"


def _fastest(size: int, needed: int, all_on_gpus: bool, hosts: int) -> tuple[str, str]:
    if hosts > 1:
        return "torchstore", f"the run has {hosts} hosts"
    if all_on_gpus and KEEP * size <= MOST_ON_GPU:
        return "cuda_ipc", "trainer and engine are on GPUs of one host"
    if has_room(needed):
        where = f"{KEEP} snapshots of {_gib(size)} are much for a GPU" if all_on_gpus else "one host"
        return "shared_memory", f"{where}, and {SHARED_MEMORY} has room for {SNAPSHOTS} of {_gib(size)}"
    return "torchstore", f"{SNAPSHOTS} snapshots take {_gib(needed)}, and {SHARED_MEMORY} has {_gib(room())} free"


_STORES: dict[str, type[SharedMemoryStore] | type[CudaIpcStore] | type[TorchStoreWeights]] = {
    "shared_memory": SharedMemoryStore,
    "cuda_ipc": CudaIpcStore,
    "torchstore": TorchStoreWeights,
}
_NAMES = {"shared_memory": "shared memory", "cuda_ipc": "GPU memory (CUDA IPC)", "torchstore": "TorchStore"}


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**28 else f"{size / 2**20:,.1f} MiB"
