"""How vLLM's engine is started: its settings, and the start."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.generator.cache import same_name
from agents.generator.worker import end_with

SHARED_GPU_FRACTION = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine is started."""

    max_model_len: int = 1024
    """Tokens of prompt and answer together."""
    max_requests: int = 128
    """Requests in flight in the engine; further ones wait in its queue."""
    dtype: str = "float32"
    kv_cache_gib: float = 1.0
    """For keys and values, on each of its processes. On GPU, 0 is what gpu_memory_fraction leaves."""
    gpu_memory_fraction: float = 0.9
    """Of a GPU that the engine has for itself; where kv_cache_gib says it, this says nothing."""
    cache_on_update: str = "keep"
    """What becomes of the keys and values of requests that run when new weights come: "keep" goes on with them, and
    "recompute" computes them again with the new weights."""
    enforce_eager: bool = True
    gather_s: float = 0.0
    """Hold a small batch as long as requests keep coming, each within this time of the last; 0 never holds."""
    gather_most_s: float = 0.3
    """But never for longer than this."""
    tensor_parallel: int = 1
    """GPUs that each matrix is cut over; above 1, vLLM has a process of its own for each."""
    worker_process: bool = False
    """Whether it has one for a single GPU too: what prepares and launches a step then has an interpreter of its own,
    and does not wait for the one that takes calls."""
    threads: int = 0
    """CPU threads of the engine; 0 leaves it to torch."""
    stall_seconds: float = 300.0
    """An engine that has requests and computes no token for so long is broken; the first request may take longer."""
    seed: int = 0

    @property
    def apart(self) -> bool:
        """Whether the workers are in processes of their own, where each fetches new weights by itself."""
        return self.worker_process or self.tensor_parallel > 1


def import_vllm(settings: EngineSettings) -> None:
    """Import vLLM, with what it reads from the environment."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(max(1, round(settings.kv_cache_gib))))
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Binding threads to cores would pin the engine to cores that its neighbours use as well.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    importlib.import_module("vllm.v1.engine.llm_engine")


def load_engine(model: str, settings: EngineSettings) -> Any:
    """A vLLM `LLMEngine` of the model in this folder or of this name."""
    import_vllm(settings)
    import torch
    from vllm import EngineArgs, LLMEngine

    if settings.threads:
        torch.set_num_threads(settings.threads)
    if settings.apart:  # a fork of a process with threads and an open GPU does not run
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    _know(model)
    fraction, cache = settings.gpu_memory_fraction, None
    if settings.kv_cache_gib and torch.cuda.is_available():
        # With the bytes given, the fraction only says how much must be free at the start, beside whoever else is there.
        fraction, cache = SHARED_GPU_FRACTION, int(settings.kv_cache_gib * 2**30)
    # Only what is compiled asks for a name that stays, and vLLM's own processes would not know it.
    name = model if settings.enforce_eager or settings.apart else same_name(model)
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=name,
            dtype=settings.dtype,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_requests,
            gpu_memory_utilization=fraction,
            kv_cache_memory_bytes=cache,
            enforce_eager=settings.enforce_eager,
            tensor_parallel_size=settings.tensor_parallel,
            distributed_executor_backend="mp" if settings.apart else None,
            seed=settings.seed,
            enable_prefix_caching=True,
            # A prompt in pieces breaks seeded requests on CPU: vLLM rewinds an offset that CPU generators do not have.
            enable_chunked_prefill=torch.cuda.is_available(),
            skip_tokenizer_init=True,
            disable_log_stats=True,
            # Logprobs at the sampling temperature: the trainer computes its own at the same one.
            logprobs_mode="processed_logprobs",
        )
    )
    if settings.apart:
        engine.collective_rpc(end_with, args=(os.getpid(),))
    return engine


def _know(model: str) -> None:
    """Let vLLM look at the model's class here: it would in a process of its own, which imports everything once more.

    It keeps what it finds there for the next start; on a machine's first one this saves 17 s.
    """
    from huggingface_hub import try_to_load_from_cache
    from vllm import ModelRegistry

    folder = Path(model)
    try:
        path = folder / "config.json" if folder.is_dir() else try_to_load_from_cache(model, "config.json")
        (architecture,) = json.loads(Path(str(path)).read_text())["architectures"]
        found = ModelRegistry.models[architecture].load_model_cls()
    except (OSError, KeyError, ValueError, TypeError, ImportError):
        return  # vLLM finds it by its own means, or says what is wrong
    ModelRegistry.register_model(architecture, found)
