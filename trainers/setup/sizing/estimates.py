"""The memory of each process of a plan."""

from __future__ import annotations

from dataclasses import replace

from agents.generator.settings import EngineSettings
from forge_env.runtime.weights import CudaIpcStore, NcclStore, WeightStore
from trainers.config import RunConfig
from trainers.lora import lora_of, published_parameters
from trainers.model.shape import ModelShape
from trainers.setup.memory import BYTES, GIB, Memory, engine_memory, reference_memory, runtime_bytes, trainer_memory
from trainers.setup.placement import Process

WORKSPACES = 1.5 * GIB
"""What a step of the trainer or of the reference model takes on a GPU beside its tensors: workspaces of matrix
products, and memory that torch's allocator cannot reuse. Measured on an H200 with 8k tokens: 1.4 and 1.6 GiB."""


def snapshot_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Bytes of one snapshot of the published weights, which are in the engine's dtype."""
    return BYTES[config.engine_dtype] * published_parameters(lora_of(config, shape), shape)


def estimate_memory(
    config: RunConfig,
    process: Process,
    shape: ModelShape | None,
    engine: EngineSettings | None,
    store: WeightStore | None,
) -> Memory | None:
    """The memory of one process; None if the sizes of the model are not known. `engine` is for an engine's process."""
    if process.service in ("controller", "envs"):
        return Memory()
    if shape is None:
        return None
    snapshot, is_on_gpu = snapshot_bytes(config, shape), isinstance(store, CudaIpcStore | NcclStore)
    if process.service == "store":  # two snapshots in the host's memory
        return Memory() if is_on_gpu else Memory(held={"weights": 2.0 * snapshot})
    if process.service == "generator":
        assert engine is not None
        received = snapshot if isinstance(store, NcclStore) else 0
        return engine_memory(config, shape, engine, cache=engine.kv_cache_gib * GIB, received=received)
    if process.service == "ref_model":
        memory, ranks = reference_memory(config, shape), config.services.ref_model.procs
    else:
        kept = store.keep if store and is_on_gpu and process.rank == 0 else 0
        memory, ranks = trainer_memory(config, shape, versions=kept * snapshot), config.services.trainer.procs
    if process.gpu is None:
        return memory
    runtime, (step, *others) = runtime_bytes(ranks), memory.phases or ({},)
    return replace(
        memory,
        held=memory.held | {"runtime": runtime},
        phases=(step | {"workspaces": WORKSPACES}, *others),
        resting=None if memory.resting is None else memory.resting + runtime,
    )
