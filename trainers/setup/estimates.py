"""Estimates of memory for the processes of a plan, from the formulas of memory.py."""

from __future__ import annotations

from agents.generator.start import EngineSettings
from forge_env.runtime.weights import KEEP, CudaIpcStore, NcclStore, WeightStore
from trainers.config import RunConfig
from trainers.model.shape import ModelShape
from trainers.setup.memory import (
    BFLOAT16,
    FLOAT32,
    GIB,
    Memory,
    generator_memory,
    reference_memory,
    store_memory,
    trainer_memory,
)
from trainers.setup.placement import Process


def estimate_memory(
    config: RunConfig, process: Process, shape: ModelShape | None, engine: EngineSettings, store: WeightStore | None
) -> Memory | None:
    """The memory of one process; None where the sizes of the model are not known."""
    if process.service in ("controller", "envs"):
        return Memory()
    if shape is None:
        return None
    is_on_gpu = isinstance(store, CudaIpcStore | NcclStore)
    receives = isinstance(store, NcclStore)
    if process.service == "store":
        return Memory() if is_on_gpu else store_memory(shape)
    compute = FLOAT32 if process.gpu is None else BFLOAT16
    # Of one forward pass. The rows of an episode may go to several: what must fit is the longest row.
    tokens = max(config.training.max_tokens_per_micro_batch, config.env.max_tokens)
    if process.service == "generator":
        cache = engine.kv_cache_gib * GIB
        return generator_memory(
            shape, tensor=max(1, config.services.generator.procs), compute=compute, cache=cache, receives=receives
        )
    if process.service == "ref_model":
        return reference_memory(shape, tokens=tokens, compute=compute, receives=receives)
    tensor = max(1, config.parallelism.tensor_parallel_degree)
    return trainer_memory(
        shape,
        shard=max(1, config.services.trainer.procs // tensor),
        tensor=tensor,
        tokens=tokens,
        compute=BFLOAT16 if trainer_dtype(config) == "bfloat16" else FLOAT32,
        checkpointing=config.training.activation_checkpoint,
        compiled=config.training.compile,
        kept_logits=config.training.keep_logits_gib * GIB if process.gpu is not None else 0,
        versions=KEEP if is_on_gpu and process.rank == 0 else 0,
    )


def trainer_dtype(config: RunConfig) -> str:
    """What the trainer computes in: "float32" or "bfloat16"."""
    chosen = config.training.dtype
    return chosen if chosen != "auto" else "bfloat16" if config.services.trainer.with_gpus else "float32"
