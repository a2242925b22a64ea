"""Estimates of memory for the processes of a plan, from the formulas of memory.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agents.generator.start import EngineSettings
from forge_env.runtime.weights import CudaIpcStore, NcclStore, WeightStore
from trainers.config import RunConfig
from trainers.lora import lora_of, published_parameters
from trainers.model.shape import ModelShape
from trainers.settings.services import ServiceConfig
from trainers.setup.memory import (
    BFLOAT16,
    BYTES,
    FLOAT32,
    GIB,
    WORKSPACES,
    Memory,
    adapter_bytes,
    engine_buffers,
    engine_residue,
    generator_memory,
    reference_memory,
    runtime_bytes,
    store_memory,
    trainer_memory,
)
from trainers.setup.placement import Process


def estimate_memory(
    config: RunConfig,
    process: Process,
    shape: ModelShape | None,
    engine: EngineSettings | None,
    store: WeightStore | None,
) -> Memory | None:
    """The memory of one process; None where the sizes of the model are not known.

    Args:
        engine: None for processes that are not the engine's.
    """
    if process.service in ("controller", "envs"):
        return Memory()
    if shape is None:
        return None
    is_on_gpu = isinstance(store, CudaIpcStore | NcclStore)
    receives = isinstance(store, NcclStore)
    if process.service == "store":
        return Memory() if is_on_gpu else store_memory(snapshot_bytes(config, shape))
    compute = FLOAT32 if process.gpu is None else BFLOAT16
    # Of one forward pass. The rows of an episode may go to several: what must fit is the longest row.
    tokens = max(config.training.max_tokens_per_micro_batch, config.env.max_tokens)
    if process.service == "generator":
        assert engine is not None
        return engine_memory(config, shape, engine, cache=engine.kv_cache_gib * GIB, receives=receives)
    if process.service == "ref_model":
        compute = BFLOAT16 if model_dtype(config, config.services.ref_model) == "bfloat16" else FLOAT32
        shard, fp32_head = max(1, config.services.ref_model.procs), config.training.fp32_head
        memory = reference_memory(shape, tokens=tokens, compute=compute, shard=shard, fp32_head=fp32_head)
        return _with_runtime(memory, process, shard)
    tensor = max(1, config.parallelism.tensor_parallel_degree)
    replicas = max(1, config.parallelism.data_parallel_replicate_degree)
    memory = trainer_memory(
        shape,
        shard=max(1, config.services.trainer.procs // (tensor * replicas)),
        tensor=tensor,
        context=max(1, config.parallelism.context_parallel_degree),
        tokens=tokens,
        compute=BFLOAT16 if trainer_dtype(config) == "bfloat16" else FLOAT32,
        checkpointing=config.training.activation_checkpoint,
        compiled=config.training.compile,
        kept_logits=config.training.keep_logits_gib * GIB if process.gpu is not None else 0,
        published=BYTES[config.engine_dtype],
        versions=store.keep if is_on_gpu and store and process.rank == 0 else 0,
        optimizer=config.training.optimizer_state,
        offloaded=config.training.cpu_offload and process.gpu is not None,
        reshard=config.training.reshard_after_forward,
        fp32_head=config.training.fp32_head,
        replicas=replicas,
        lora=lora_of(config, shape),
        expert=max(1, config.parallelism.expert_parallel_degree),
    )
    return _with_runtime(memory, process, config.services.trainer.procs)


def _with_runtime(memory: Memory, process: Process, ranks: int) -> Memory:
    """The memory of a process on a GPU includes what CUDA and NCCL take, and a step's workspaces."""
    if process.gpu is None:
        return memory
    runtime = runtime_bytes(ranks)
    resting = None if memory.resting is None else memory.resting + runtime
    step, *others = memory.phases or ({},)
    phases = (step | {"workspaces": WORKSPACES}, *others)
    return replace(memory, held=memory.held | {"runtime": runtime}, phases=phases, resting=resting)


def engine_memory(
    config: RunConfig, shape: ModelShape, engine: EngineSettings, *, cache: float, receives: bool = False
) -> Memory:
    """The memory of one process of the engine with a cache of so many bytes."""
    generator, lora = config.services.generator, lora_of(config, shape)
    tensor, compute = max(1, generator.procs), BFLOAT16 if generator.with_gpus else FLOAT32
    received = float(snapshot_bytes(config, shape)) if receives else 0.0
    adapter = adapter_bytes(shape, lora, compute=compute, tensor=tensor) if lora and engine.lora_rank else 0.0
    parts: dict[str, Any] = {
        "tensor": tensor,
        "compute": compute,
        "cache": cache,
        "received": received,
        "adapter": adapter,
    }
    if not generator.with_gpus:
        return generator_memory(shape, **parts)
    graphs = not engine.enforce_eager
    buffers = engine_buffers(
        shape,
        tensor=tensor,
        compute=compute,
        requests=engine.max_requests,
        graphs=graphs,
        tokens=engine.engine_args.get("max_num_batched_tokens") or engine.step_tokens,
    )
    asleep = engine_residue(tensor=tensor, graphs=graphs) + adapter if engine.sleep else None
    return generator_memory(shape, **parts, buffers=buffers, asleep=asleep)


def snapshot_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Bytes of one snapshot of the weights, which are published in the engine's dtype."""
    return BYTES[config.engine_dtype] * published_parameters(lora_of(config, shape), shape)


def trainer_dtype(config: RunConfig) -> str:
    """What the trainer computes in: "float32" or "bfloat16"."""
    return model_dtype(config, config.services.trainer)


def model_dtype(config: RunConfig, service: ServiceConfig) -> str:
    """What the trainer or the reference model computes in: "float32" or "bfloat16"."""
    chosen = config.training.dtype
    return chosen if chosen != "auto" else "bfloat16" if service.with_gpus else "float32"
