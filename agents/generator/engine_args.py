"""Settings that a user passes through to vLLM: their names and types. vLLM checks their values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forge_env.core.errors import UserError, nearest
from forge_env.utils.settings import read_value

OPTION = "--services.generator.engine"
SETTINGS: dict[str, Any] = {
    "async_scheduling": bool,
    "attention_backend": str,
    "block_size": int,
    "compilation_config": dict[str, Any],
    "cudagraph_capture_sizes": list[int],
    "disable_cascade_attn": bool,
    "disable_custom_all_reduce": bool,
    "enable_prefix_caching": bool,
    "gdn_prefill_backend": str,
    "kv_cache_dtype": str,
    "max_cudagraph_capture_size": int,
    "max_num_batched_tokens": int,
    "quantization": str,
    "speculative_config": dict[str, Any],
    "watermark": float,
}
"""The arguments of vLLM's EngineArgs that the run does not set itself, and that its logprobs and updates allow."""
_FULL = 2  # of vLLM's CUDAGraphMode
_DICTIONARIES = ("compilation_config", "speculative_config")
QUANTIZATIONS = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8")
"""Quantizations that vLLM makes of bfloat16 weights at every load: the trainer publishes such weights."""
_OURS = {
    "model": "it is --model",
    "dtype": "it is bfloat16 on a GPU and float32 on a CPU, as the published weights are",
    "seed": "it is --seed",
    "max_model_len": "it is --env.max_tokens",
    "max_num_seqs": "it follows from --training.batch_size, the group size and --training.staleness",
    "gpu_memory_utilization": "it is --services.generator.gpu_memory_utilization",
    "kv_cache_memory_bytes": "it is --services.generator.kv_cache_gib",
    "num_gpu_blocks_override": "it is --services.generator.kv_cache_gib",
    "enforce_eager": "it is --services.generator.cuda_graphs, the other way round",
    "tensor_parallel_size": "it is --services.generator.procs",
    "data_parallel_size": "several engines are --services.generator.num_replicas",
    "enable_sleep_mode": "it is --services.generator.sleep",
    "generation_config": "sampling is set by --grpo.temperature and --evaluation.temperature",
    "enable_lora": "it follows from --lora.rank and --lora.publish",
}


def read_engine_args(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings for vLLM's EngineArgs, and convert texts to their types.

    Args:
        settings: values as from a YAML file, or texts as from the command line, also within dictionaries.
    """
    args: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _OURS:
            raise UserError(f"{OPTION}.{name} is set by the run: {_OURS[name]}")
        if name not in SETTINGS:
            raise UserError(
                f"{OPTION}.{name} is no setting of vLLM that passes through, see docs/gpu.md. {nearest(name, SETTINGS)}"
            )
        args[name] = _literals(value) if name in _DICTIONARIES else value
    args = {name: read_value(value, SETTINGS[name], f"{OPTION}.{name}") for name, value in args.items()}
    if (quantization := args.get("quantization")) not in (None, *QUANTIZATIONS):
        raise UserError(
            f"{OPTION}.quantization is {quantization}, which the bfloat16 weights that the trainer publishes cannot be "
            f"loaded into: take one that vLLM makes of them at every load, {', '.join(QUANTIZATIONS)}"
        )
    graphs = args.get("compilation_config", {}).get("cudagraph_mode")
    if graphs == _FULL or str(graphs).upper() == "FULL":
        raise UserError(
            f"{OPTION}.compilation_config.cudagraph_mode is {graphs}, with which answers of vLLM 0.32 were measured "
            "to be wrong: take FULL_AND_PIECEWISE, its default, or PIECEWISE"
        )
    return args


def refusal(error: Exception, args: Mapping[str, Any]) -> UserError | None:
    """The sentence for a user about an error of vLLM's start; None if the error is about none of the settings.

    Args:
        error: of vLLM. It names the setting, or its value.
    """
    message = _letters(str(error))
    argument = next((name for name in args if _letters(name) in message), "") or next(
        (name for name, value in args.items() if isinstance(value, str) and _letters(value) in message), ""
    )
    if not argument:
        return None
    # An error of pydantic has several lines, with the addresses of its documentation.
    errors: list[dict[str, Any]] = error.errors() if hasattr(error, "errors") else [{"msg": str(error)}]
    reasons = "; ".join(" ".join(each["msg"].split()) for each in errors)
    return UserError(f"{OPTION}.{argument} is {args[argument]}, which vLLM refuses: {reasons}")


def approximations(args: Mapping[str, Any]) -> list[str]:
    """The settings that move the engine's logprobs from the trainer's by more than rounding, as "name=value"."""
    settings = [f"quantization={args['quantization']}"] if args.get("quantization") else []
    if args.get("kv_cache_dtype", "auto") not in ("auto", "bfloat16"):
        settings.append(f"kv_cache_dtype={args['kv_cache_dtype']}")
    if speculative := args.get("speculative_config"):
        name = "method" if speculative.get("method") else "model"
        settings.append(f"speculative_config.{name}={speculative.get(name, '')}")
    return settings


def has_draft_model(args: Mapping[str, Any]) -> bool:
    """Whether the engine has weights that the trainer does not publish."""
    return bool((args.get("speculative_config") or {}).get("model"))


def _letters(text: str) -> str:
    """The letters of a text, which are the same for attention_backend, "attention backend" and AttentionBackend."""
    return "".join(filter(str.isalnum, text)).lower()


def _literals(value: Any) -> Any:
    """A value in which each text that is JSON, for example a number, is what it says."""
    if isinstance(value, Mapping):
        return {name: _literals(entry) for name, entry in value.items()}
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
