"""The memory of each process of a plan."""

from __future__ import annotations

from dataclasses import replace

from agents.generator.settings import EngineSettings
from forge_env.runtime.weights import CudaIpcStore, NcclStore, WeightStore, choose_store
from trainers.lora import published_parameters
from trainers.setup.draft import Draft
from trainers.setup.memory import BYTES, GIB, Memory, engine_memory, reference_memory, runtime_bytes, trainer_memory
from trainers.setup.placement import Process

WORKSPACES = 1.5 * GIB
"""What a step of the trainer or of the reference model takes on a GPU beside its tensors: workspaces of matrix
products, and memory that torch's allocator cannot reuse. Measured on an H200 with 8k tokens: 1.4 and 1.6 GiB."""


def snapshot_bytes(draft: Draft) -> int:
    """Bytes of one snapshot of the published weights, which are in the engine's dtype."""
    return BYTES[draft.services.generator.dtype] * published_parameters(draft.lora, draft.sizes)


def find_store(draft: Draft) -> tuple[WeightStore, str] | None:
    """The weight store of a run, and a sentence that says why; None if the sizes of the model are not known.

    Raises:
        UserError: when the store that the config names cannot work, as far as that is known.
    """
    services, placement = draft.services, draft.placement
    all_on_gpus = services.trainer.with_gpus and services.generator.with_gpus
    found = choose_store(
        draft.config.weights.store,
        size=snapshot_bytes(draft) if draft.shape else 0,
        all_on_gpus=all_on_gpus,
        hosts=placement.num_hosts,
        shared_gpus=all_on_gpus and placement.shares_gpus,
        card=draft.card,
    )
    return found if draft.shape else None


def estimate_memory(
    draft: Draft, process: Process, engine: EngineSettings | None, store: WeightStore | None
) -> Memory | None:
    """The memory of one process; None if the sizes of the model are not known. `engine` is for an engine's process."""
    if process.service in ("controller", "envs"):
        return Memory()
    if draft.shape is None:
        return None
    snapshot, is_on_gpu = snapshot_bytes(draft), isinstance(store, CudaIpcStore | NcclStore)
    if process.service == "store":  # two snapshots in the host's memory
        return Memory() if is_on_gpu else Memory(held={"weights": 2.0 * snapshot})
    if process.service == "generator":
        assert engine is not None
        received = snapshot if isinstance(store, NcclStore) else 0
        return engine_memory(draft, engine, cache=engine.kv_cache_gib * GIB, received=received)
    if process.service == "ref_model":
        memory, ranks = reference_memory(draft), draft.services.ref_model.procs
    else:
        kept = store.keep if store and is_on_gpu and process.rank == 0 else 0
        memory, ranks = trainer_memory(draft, versions=kept * snapshot), draft.services.trainer.procs
    if process.gpu is None:
        return memory
    runtime, (step, *others) = runtime_bytes(ranks), memory.phases or ({},)
    return replace(
        memory,
        held=memory.held | {"runtime": runtime},
        phases=(step | {"workspaces": WORKSPACES}, *others),
        resting=None if memory.resting is None else memory.resting + runtime,
    )
