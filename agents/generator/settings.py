"""The settings of vLLM's engine: options of a run, and what follows from the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Gt, Interval

GATHER_S = 0.015  # `gather_s` of an engine on a CPU


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of the section `services.generator`."""

    kv_cache_gib: Annotated[float, Interval(ge=0, le=1024)] = 0.0
    """Memory for keys and values, on each process. 0 is 1 GiB on CPU. On GPU, 0 is what all requests of the run need at
    their longest, or what gpu_memory_utilization leaves."""
    gpu_memory_utilization: Annotated[float, Interval(gt=0, le=1)] = 0.9
    """On GPU: the share of the card that the engine's cache may fill, together with the engine's weights and everything
    else on the card."""
    cuda_graphs: bool = True
    """On GPU: capture the steps in CUDA graphs. It takes a minute at the start, and makes small batches much faster."""
    worker_process: bool = True
    """On one GPU: a process of its own prepares and launches the steps, as on several GPUs. It does not wait for the
    process that takes requests, and so makes more tokens a second; docs/gpu.md. On a CPU there is none."""
    fast_path: bool = True
    """Whether the engine's thread takes shorter ways than vLLM's own, with the same result; see docs/gpu.md."""


@dataclass(frozen=True, kw_only=True)
class StallOption:
    """An option of the section `deadlines`."""

    stall_seconds: Annotated[float, Gt(0)] = 300.0
    """An engine that has requests and computes no token for this time is ended and replaced."""


@dataclass(frozen=True, kw_only=True)
class UpdateOption:
    """An option of the section `training`."""

    cache_on_update: Literal["keep", "recompute"] = "keep"
    """The KV cache of requests that are in flight at a weight update (staleness above 0): keep the cache of the old
    weights, or recompute it with the new ones."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings(EngineOptions, StallOption, UpdateOption):
    """Settings of an engine, e.g. `EngineSettings(max_model_len=512)`. By default it can be on a CPU."""

    kv_cache_gib: float = 1.0
    cuda_graphs: bool = False
    worker_process: bool = False
    max_model_len: int = 1024
    """Context length: tokens of prompt and completion."""
    max_requests: int = 128
    """Requests in flight in the engine; further ones wait in its queue."""
    step_tokens: int = 16384
    """On a GPU: tokens that one step computes at most, of prompts and completions together."""
    dtype: str = "float32"
    gpu_memory_gib: float = 0.0
    """What the GPU is believed to have; 0 is what it has. It counts if kv_cache_gib is 0."""
    sleep: bool = False
    """Whether the engine can be put to sleep, which gives its GPU memory back; see `VLLMEngine.sleep`."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's EngineArgs, as `agents.generator.engine_args.read_engine_args` returns them."""
    lora_rank: int = 0
    """The largest rank of an adapter that is published instead of weights, see `agents.generator.lora_slot`; 0 means no
    adapter."""
    named_adapters: int = 0
    """Adapters beside the published one that can be loaded by name, of rank `lora_rank` at most; see
    `VLLMEngine.load_adapter`."""
    return_routes: bool = False
    """Whether completions have the experts that each token was computed with; see `agents.generator.route_log`."""
    gather_s: float = 0.0
    """Delay a small batch while requests keep arriving within this many seconds of the last, or a few times their mean
    interval; 0 never delays."""
    gather_most_s: float = 1.0
    """The longest delay of a batch, in seconds."""
    tensor_parallel: int = 1
    """GPUs that every matrix is sharded over; above 1, vLLM starts one worker process per GPU."""
    threads: int = 0
    """CPU threads of the engine; 0 leaves the number to torch."""
    seed: int = 0

    @property
    def has_worker_processes(self) -> bool:
        """Whether the workers are separate processes; these fetch new weights themselves."""
        return self.worker_process or self.tensor_parallel > 1
