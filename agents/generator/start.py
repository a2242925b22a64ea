"""The start of vLLM's engine."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from agents.generator import fork_server
from agents.generator.engine_args import refusal
from agents.generator.fast_path.install import speed_up
from agents.generator.lora_slot import slot_arguments
from agents.generator.process_group import end_core_alone
from agents.generator.sampler_warmup import warm_up_what_is_asked
from agents.generator.settings import EngineSettings
from agents.generator.worker import end_with
from agents.model_folder import check_engine_packages, config_of, has_linear_attention
from forge_env.core.errors import UserError
from forge_env.utils.quick_imports import quick_imports

SHARED_GPU_FRACTION = 0.05
CPU_BLOCK_TOKENS = 32
"""Tokens of a block of the KV cache on a CPU."""
GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 576, 640, 768, 1024)
"""Tokens of the steps that have CUDA graphs; a step is padded to the next size. vLLM's 51 sizes are as fast, and take
three times as long to capture."""
COMBINED = {"combo_kernels": True, "benchmark_combo_kernel": False}
"""vLLM's choice of kernels without its measurement of each, which took a third of the time to compile. Kernels of less
than 0.3 ms are combined whatever it says."""
KERNEL_SETTINGS = Path(__file__).parent / "lora_kernels"
"""Settings of vLLM's LoRA kernels by GPU, measured by benchmarks.gpu.lora_kernels."""
_TUNED_BY_FLASHINFER = ("quantization", "attention_backend")
"""Arguments of vLLM that may choose kernels of FlashInfer's; without them a dense model in bfloat16 uses none."""
_GIVE_SIZES = ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "speculative_config")
"""Arguments of vLLM that other sizes of graphs follow from, also within `compilation_config`."""


def import_vllm(settings: EngineSettings) -> None:
    """Import vLLM after setting the environment variables that it reads. If the engine has worker processes, the server
    of their forks imports it meanwhile."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(max(1, round(settings.kv_cache_gib))))
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Binding threads to cores would pin the engine to cores that other processes of the run use, too.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # FlashInfer's sampler gives no processed logprobs, so no request of ours uses it; its import takes seconds.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    if settings.lora_rank:  # vLLM has no such files; without one for a GPU, it has one setting for all shapes
        os.environ.setdefault("VLLM_TUNED_CONFIG_FOLDER", str(KERNEL_SETTINGS))
    if settings.has_worker_processes:
        fork_server.start()
    with quick_imports():
        importlib.import_module("vllm.v1.engine.llm_engine")


def load_engine(model: str, settings: EngineSettings) -> Any:
    import_vllm(settings)
    warm_up_what_is_asked()
    import torch
    from vllm import EngineArgs, LLMEngine, envs

    if settings.threads:
        torch.set_num_threads(settings.threads)
    if settings.has_worker_processes:  # a forked child of this process, with threads and an open GPU, does not work
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    is_hybrid = False
    if Path(model).is_dir():
        check_engine_packages(Path(model))
        is_hybrid = has_linear_attention(Path(model))
    _register_architecture(model)
    # Only compiled graphs are kept under the model's path.
    name = stable_path(model, Path(envs.VLLM_CACHE_ROOT) / "forge_env_models") if settings.cuda_graphs else model
    on_gpu, gpu_bytes = torch.cuda.is_available(), 0
    if on_gpu and settings.gpu_memory_gib:
        gpu_bytes = torch.cuda.get_device_properties(0).total_memory
    arguments = engine_arguments(settings, on_gpu=on_gpu, gpu_bytes=gpu_bytes)
    if is_hybrid and on_gpu:  # vLLM's choice on Hopper cards is flashinfer, which compiles for minutes
        arguments.setdefault("gdn_prefill_backend", "triton")
    if is_hybrid and not on_gpu:  # vLLM caches the memory of linear attention with chunked prefill only
        arguments["enable_prefix_caching"] = settings.engine_args.get("enable_prefix_caching", False)
    with fork_server.vllm_forks() if settings.has_worker_processes else nullcontext():
        try:
            engine = LLMEngine.from_engine_args(EngineArgs(model=name, **arguments))
        except Exception as error:
            if error_sentence := refusal(error, settings.engine_args):
                raise error_sentence from error
            raise
    if settings.fast_path:
        speed_up(engine)
    if settings.has_worker_processes:
        engine.collective_rpc(end_with, args=(os.getpid(),))
    else:
        end_core_alone(engine.engine_core)
    return engine


def engine_arguments(settings: EngineSettings, *, on_gpu: bool, gpu_bytes: int = 0) -> dict[str, Any]:
    """The arguments of vLLM's EngineArgs for these settings, without the model.

    Args:
        gpu_bytes: the GPU's memory; needed if `gpu_memory_gib` is set.
    """
    fraction, cache = settings.gpu_memory_utilization, None
    if settings.kv_cache_gib and on_gpu:
        # With the bytes given, the fraction only says how much must be free at the start: other processes share the
        # GPU.
        fraction, cache = SHARED_GPU_FRACTION, int(settings.kv_cache_gib * 2**30)
    elif settings.gpu_memory_gib and on_gpu:
        fraction *= min(1.0, settings.gpu_memory_gib * 2**30 / gpu_bytes)
    most, sizes = settings.max_requests, None
    compilation = dict(settings.engine_args.get("compilation_config", {}))
    if on_gpu and most <= GRAPH_SIZES[-1] and not any(map((compilation | dict(settings.engine_args)).get, _GIVE_SIZES)):
        sizes = sorted({most, *(size for size in GRAPH_SIZES if size <= 2 * most)})
    inductor = compilation.get("inductor_compile_config", {})
    if on_gpu and settings.cuda_graphs and isinstance(inductor, Mapping):
        compilation["inductor_compile_config"] = {**COMBINED, **inductor}
    arguments = {
        **slot_arguments(settings.lora_rank, settings.named_adapters),
        # On a CPU `agents.generator.route_log` does it: vLLM's own way needs its second model runner, and so Triton.
        "enable_return_routed_experts": settings.return_routes and on_gpu,
        # A folder of Mistral's has its model twice. By itself vLLM takes params.json and consolidated.safetensors, and
        # the trainer takes the others.
        "config_format": "hf",
        "load_format": "hf",
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_requests,
        # An `LLMEngine` outside of vLLM's own `LLM` gets 2,048 by default: long prompts would take eight times the
        # steps. On a CPU this default stays.
        "max_num_batched_tokens": settings.step_tokens if on_gpu else None,
        "gpu_memory_utilization": fraction,
        "kv_cache_memory_bytes": cache,
        "enforce_eager": not settings.cuda_graphs,
        "cudagraph_capture_sizes": sizes if settings.cuda_graphs else None,
        "tensor_parallel_size": settings.tensor_parallel,
        "distributed_executor_backend": "mp" if settings.has_worker_processes else None,
        "seed": settings.seed,
        # On a GPU other kernels of experts rearrange the weights, and new weights are written in place as they come.
        "moe_backend": "triton" if on_gpu else "auto",
        "enable_prefix_caching": True,
        # The prefix cache finds full blocks only. Many prompts are shorter than vLLM's 128 tokens on a CPU, and 32 is
        # the smallest block that its attention kernel runs at full speed with.
        "block_size": None if on_gpu else CPU_BLOCK_TOKENS,
        # Chunked prefill breaks seeded requests on CPU: vLLM rewinds an offset that CPU generators do not have.
        "enable_chunked_prefill": on_gpu,
        # vLLM puts weights and cache into a memory pool that it can empty. If the environment has torch's expandable
        # segments on, vLLM switches them off while it fills the pool.
        "enable_sleep_mode": settings.sleep and on_gpu,
        # Tuning imports FlashInfer and computes the longest step. This takes seconds, and helps no kernel of ours.
        "enable_flashinfer_autotune": None if any(map(settings.engine_args.get, _TUNED_BY_FLASHINFER)) else False,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        # Logprobs at the sampling temperature: the trainer computes its logprobs at the same one.
        "logprobs_mode": "processed_logprobs",
    }
    return {**arguments, **settings.engine_args, "compilation_config": compilation}


def _register_architecture(model: str) -> None:
    """Register the model's class with vLLM. Otherwise vLLM inspects it in a subprocess that imports everything again.

    vLLM caches the result of the inspection; on a machine's first start this saves 17 s.
    """
    from huggingface_hub import try_to_load_from_cache
    from vllm import ModelRegistry

    try:
        cached = None if Path(model).is_dir() else try_to_load_from_cache(model, "config.json")
        (architecture,) = config_of(Path(cached).parent if isinstance(cached, str) else Path(model))["architectures"]
        model_class = ModelRegistry.models[architecture].load_model_cls()
    except (UserError, KeyError, ValueError, TypeError, ImportError):
        return  # vLLM resolves the class itself, or reports the error
    ModelRegistry.register_model(architecture, model_class)


_MOST_FOLDERS = 64  # of models with one config.json that engines of this machine read at the same time


def stable_path(folder: str, links: Path) -> str:
    """A path of `folder` that depends on its config.json and not on its name, for every process of this machine.

    vLLM's compile cache has the model's path in its key, beside the config. A model that every run writes to a new
    folder would be compiled again in every run. So vLLM is given a symbolic link, `links`/KEY/NUMBER; KEY is a hash of
    config.json. An engine holds a shared lock on the file beside its link until its process ends. Engines of one folder
    use one link, and another folder with the same config.json takes the first link that no engine holds.

    The path is `folder` itself if it has no config.json, if `links` cannot be written, or if all links of this
    config.json are in use.

    Args:
        folder: of a model, or a model's name on the hub.
        links: the folder of the links and their locks; made if it is missing.
    """
    target = os.path.realpath(folder)
    try:
        key = hashlib.sha256(Path(target, "config.json").read_bytes()).hexdigest()[:16]
        place = links.absolute() / key
        place.mkdir(parents=True, exist_ok=True)
        return next(
            (str(place / str(number)) for number in range(_MOST_FOLDERS) if _take(place, number, target)), folder
        )
    except OSError:
        return folder


def _take(place: Path, number: int, target: str) -> bool:
    """Whether link `number` leads to `target`, and is now locked for the rest of this process."""
    link = place / str(number)
    descriptor = os.open(place / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not _leads_to(link, target):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary = place / f"{number}.{os.getpid()}"
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(target)
            temporary.rename(link)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # The lock is free for a moment while it becomes a shared one.
            if not _leads_to(link, target):
                raise BlockingIOError
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return False
        raise
    return True  # the descriptor stays open, and with it the lock


def _leads_to(link: Path, target: str) -> bool:
    try:
        return os.readlink(link) == target
    except OSError:
        return False
