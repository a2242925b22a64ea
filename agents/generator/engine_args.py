"""Settings of vLLM that a user passes through: which exist, what values they take, and which are refused.

The names and types are those of `EngineArgs` of the installed vLLM, read from its source: importing vLLM takes seconds.
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agents.generator.vllm_source import ENGINE_ARGS, SPECULATIVE, bounds, choices, field_types
from forge_env.core.errors import UserError
from forge_env.utils.syntax import parse_python

OPTION = "--services.generator.engine"

_BY_US = {
    "model": "it is --model",
    "dtype": "it is bfloat16 on a GPU and float32 on a CPU, as the published weights are",
    "seed": "it is --seed",
    "max_model_len": "it is --env.max_tokens",
    "max_num_seqs": "it follows from --training.batch_size, the group size and --training.staleness",
    "gpu_memory_utilization": "it is --services.generator.gpu_memory_utilization",
    "kv_cache_memory_bytes": "it is --services.generator.kv_cache_gib",
    "num_gpu_blocks_override": "the size of the cache is --services.generator.kv_cache_gib",
    "enforce_eager": "it is --services.generator.cuda_graphs, the other way round",
    "tensor_parallel_size": "it is --services.generator.procs",
    "distributed_executor_backend": "it is --services.generator.worker_process",
    "enable_sleep_mode": "it is --services.generator.sleep",
    "enable_return_routed_experts": "it is --moe.replay",
    "enable_chunked_prefill": "it is on with a GPU; on a CPU it breaks requests that have a seed",
    "disable_log_stats": "the run has metrics of its own",
}
_NOT_EXACT = {
    "logprobs_mode": "the trainer needs the logprobs at the sampling temperature, which are processed_logprobs",
    "skip_tokenizer_init": "prompts and completions are token ids, and text must not come between them",
    "logits_processors": "they change the distribution of the tokens, which the trainer does not know of",
    "watermark_config": "it changes the distribution of the tokens, which the trainer does not know of",
    "diffusion_config": "the trainer's models sample one token after the other",
    "return_sampling_mask": "the trainer's logprobs are over the whole vocabulary",
    "enable_trace_replay": "it replays tokens instead of sampling them",
    "enable_prompt_embeds": "prompts are token ids",
    "generation_config": "sampling is set by the run: --grpo.temperature and --evaluation.temperature",
    "override_generation_config": "sampling is set by the run: --grpo.temperature and --evaluation.temperature",
    "hf_overrides": "the trainer reads the model's config.json as it is",
    "disable_sliding_window": "the trainer's attention would be another one",
    "runner": "the engine generates",
    "convert": "the engine generates",
}
_UNSAFE = {
    "trust_remote_code": "it runs code that comes with a model",
    "load_format": "weights are read from safetensors, which hold no code",
    "pt_load_map_location": "weights are read from safetensors, which hold no code",
    "model_loader_extra_config": "weights are read from safetensors, by vLLM's own loader",
    "worker_cls": "it runs a class of somebody else in the engine",
    "worker_extension_cls": "it runs a class of somebody else in the engine",
    "scheduler_cls": "it runs a class of somebody else in the engine",
    "model_class_overrides": "it runs a class of somebody else in the engine",
    "additional_config": "it is for platform plug-ins, which run in the engine",
    "io_processor_plugin": "it runs a class of somebody else in the engine",
    "reasoning_parser_plugin": "it runs a file of somebody else in the engine",
    "allowed_local_media_path": "it lets requests read files of this machine",
    "hf_token": "a token in a config is written to the run's folder: set HF_TOKEN in the environment",
}
_OTHER_WEIGHTS = {
    "cpu_offload_gb": "weights in the host's memory do not take new weights over in place",
    "cpu_offload_params": "weights in the host's memory do not take new weights over in place",
    "enable_lora": "the trainer publishes whole weights",
    "weight_transfer_config": "weights come by --weights.store",
    "moe_backend": "other kernels rearrange the weights of experts, and new weights come as the trainer has them",
    "model_impl": "new weights are loaded by the names of vLLM's own models",
    "model_weights": "weights come from --model, and then from the trainer",
    "hf_config_path": "the engine's and the trainer's model are one: --model",
    "revision": "the engine's and the trainer's model are one: --model, a local folder of that revision",
    "code_revision": "the engine's and the trainer's model are one: --model",
    "device_ids": "GPUs are handed out by the launcher: --launcher.gpus_per_host, --launcher.share_gpus",
    "nnodes": "an engine is on one host",
    "node_rank": "an engine is on one host",
    "master_addr": "an engine is on one host",
    "master_port": "an engine is on one host",
    "kv_transfer_config": "caches do not leave the engine: their weights would be unknown",
    "quantization_config": f"take {OPTION}.quantization",
    "sleep_mode_backend": "it is settled by --services.generator.sleep",
    "sleep_mode_offload_cudagraph": "it is settled by --services.generator.sleep",
    "sleep_preserve_parameter_names": "a sleeping engine is given all of its weights again",
    "spec_method": f"write {OPTION}.speculative_config.method",
    "spec_model": f"write {OPTION}.speculative_config.model",
    "spec_tokens": f"write {OPTION}.speculative_config.num_speculative_tokens",
}
_FAMILIES = {  # by the beginning of the name
    "pipeline_parallel": "an engine is tensor parallel only: --services.generator.procs",
    "data_parallel": "several engines are --services.generator.num_replicas",
    "prefill_context_parallel": "an engine is tensor parallel only: --services.generator.procs",
    "decode_context_parallel": "an engine is tensor parallel only: --services.generator.procs",
    "offload_": "weights in the host's memory do not take new weights over in place",
    "tokenizer": "the engine gets token ids and needs no tokenizer",
}
REFUSED = _BY_US | _NOT_EXACT | _UNSAFE | _OTHER_WEIGHTS

QUANTIZATIONS = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8")
"""Those that vLLM makes of bfloat16 weights at every load: the trainer publishes such weights."""
CACHE_DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")
_OWN_VALUES = {"quantization", "kv_cache_dtype"}
_PLAIN = {"int", "float", "bool", "str", "None"}


def read_engine_args(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings for vLLM's EngineArgs, and convert texts to their types.

    Args:
        given: values as from a YAML file, or texts as from the command line; a dotted name is an entry of a
            dictionary: {"speculative_config.method": "ngram"}.

    Raises:
        UserError: for a name that vLLM does not have, a value of another type, or a setting that is refused.
    """
    args: dict[str, Any] = {}
    for dotted, value in given.items():
        name, _, entry = dotted.partition(".")
        _check_name(name)
        if entry:
            _put(args.setdefault(name, {}), entry, value)
        else:
            args[name] = _convert(name, value)
    _check_values(args)
    return args


def approximations(args: Mapping[str, Any]) -> list[str]:
    """The settings by which the engine's logprobs differ from the trainer's by more than rounding, as "name=value"."""
    settings = [f"quantization={args['quantization']}"] if args.get("quantization") else []
    if str(args.get("kv_cache_dtype", "auto")).startswith("fp8"):
        settings.append(f"kv_cache_dtype={args['kv_cache_dtype']}")
    if speculative := args.get("speculative_config"):
        name = "method" if speculative.get("method") else "model"
        settings.append(f"speculative_config.{name}={speculative.get(name, '')}")
    return settings


def has_draft_model(args: Mapping[str, Any]) -> bool:
    """Whether the engine holds weights that the trainer does not publish."""
    return bool((args.get("speculative_config") or {}).get("model"))


def _check_name(name: str) -> None:
    family = next((reason for start, reason in _FAMILIES.items() if name.startswith(start)), "")
    if reason := REFUSED.get(name, family):
        raise UserError(f"{OPTION}.{name} is refused: {reason}")
    known = field_types(*ENGINE_ARGS)
    if known and name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "its names are those of vllm.EngineArgs"
        raise UserError(f"{OPTION}.{name}: the installed vLLM has no such setting; {hint}")


def _check_values(args: Mapping[str, Any]) -> None:
    quantization = args.get("quantization")
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise UserError(
            f"{OPTION}.quantization is {quantization}, which the bfloat16 weights that the trainer publishes cannot be "
            f"loaded into: take one that vLLM makes of them at every load, {', '.join(QUANTIZATIONS)}"
        )
    dtype = args.get("kv_cache_dtype", "auto")
    if dtype not in CACHE_DTYPES:
        raise UserError(f"{OPTION}.kv_cache_dtype is {dtype}: take one of {', '.join(CACHE_DTYPES)}")
    _check_bounds(args, OPTION)
    speculative = args.get("speculative_config")
    if speculative is not None and not isinstance(speculative, dict):
        raise UserError(f"{OPTION}.speculative_config is {speculative!r}; it must be a dictionary, in JSON")
    _check_speculative(speculative or {}, f"{OPTION}.speculative_config")
    if (speculative or {}).get("rejection_sample_method") == "synthetic":
        raise UserError(
            f"{OPTION}.speculative_config.rejection_sample_method is synthetic, which keeps tokens that the model "
            "would not have sampled: take standard or block"
        )
    if (speculative or {}).get("method") == "custom_class":
        raise UserError(
            f"{OPTION}.speculative_config.method is custom_class, which runs a class of somebody else in the engine: "
            "take one of vLLM's own methods, as ngram"
        )


def _check_speculative(given: Mapping[str, Any], option: str) -> None:
    known = field_types(*SPECULATIVE)
    for name, value in given.items():
        if known and name not in known:
            raise UserError(f"{option}.{name}: the installed vLLM has no such setting; {_near(name, known)}")
        _, literals = _kinds(known.get(name, "str"))
        if literals and isinstance(value, str) and value not in literals and value.upper() not in literals:
            raise UserError(f"{option}.{name} is {value!r}; it must be one of {', '.join(map(str, literals))}")
    _check_bounds(given, option)


def _check_bounds(given: Mapping[str, Any], option: str) -> None:
    """Numbers are within the bounds of vLLM's own configs."""
    holds = {"at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt}
    for name, value in given.items():
        allowed = bounds().get(name, {}) if isinstance(value, int | float) else {}
        if not all(holds[word](value, bound) for word, bound in allowed.items()):
            words = " and ".join(f"{word} {bound:g}" for word, bound in allowed.items())
            raise UserError(f"{option}.{name} is {value}; it must be {words}")


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"its names are {', '.join(known)}"


def _kinds(annotation: str) -> tuple[set[str], tuple[Any, ...]]:
    """The kinds of values of a type, of "int", "float", "bool", "str", "None" and "json", and those of its literals."""
    kinds: set[str] = set()
    literals: list[Any] = []

    def visit(node: ast.expr) -> None:
        if isinstance(node, ast.BinOp):
            visit(node.left)
            visit(node.right)
        elif isinstance(node, ast.Constant):
            visit(parse_python(node.value, mode="eval").body) if isinstance(node.value, str) else kinds.add("None")
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            values = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            literals.extend(ast.literal_eval(value) for value in values)
        elif isinstance(node, ast.Name) and node.id in _PLAIN:
            kinds.add(node.id)
        elif isinstance(node, ast.Name) and node.id in choices():
            literals.extend(choices()[node.id])
        elif isinstance(node, ast.Name) and not node.id.endswith(("Config", "Args", "Overrides")) and node.id != "dict":
            kinds.add("str")  # the name of an enumeration: vLLM knows its values
        else:
            kinds.add("json")

    visit(parse_python(annotation, mode="eval").body)
    return kinds, tuple(literals)


def _convert(name: str, value: Any) -> Any:
    if name in _OWN_VALUES and isinstance(value, str):
        return value  # what we allow of it is checked by `_check_values`
    kinds, literals = _kinds(field_types(*ENGINE_ARGS).get(name, "int | float | bool | str | dict | None"))
    for kind in ("None", "bool", "int", "float", "json"):
        if kind in kinds:
            try:
                return _CONVERTERS[kind](value)
            except (ValueError, TypeError):
                continue
    if isinstance(value, str) and ("str" in kinds or value in literals or value.upper() in literals):
        return value
    words = {"json": "a dictionary or list, in JSON", "int": "a whole number", "float": "a number", "str": "a text"}
    allowed = [words.get(kind, "true or false") for kind in sorted(kinds - {"None"})] + [
        repr(literal) for literal in literals
    ]
    raise UserError(f"{OPTION}.{name} is {value!r}; it must be {' or '.join(allowed)}")


def _none(value: Any) -> None:
    if value is not None and str(value).lower() not in ("none", "null"):
        raise ValueError


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError


def _integer(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _json(value: Any) -> Any:
    content = json.loads(value) if isinstance(value, str) else value
    if not isinstance(content, dict | list):
        raise TypeError
    return content


def _put(into: Any, dotted: str, value: Any) -> None:
    """Set an entry of nested dictionaries; a text that is JSON is what it stands for, as a number is."""
    if not isinstance(into, dict):
        raise UserError(f"{OPTION}: {dotted} is an entry of a setting that was given a value of its own: give one")
    head, _, rest = dotted.partition(".")
    if rest:
        _put(into.setdefault(head, {}), rest, value)
        return
    try:
        into[head] = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        into[head] = value


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "None": _none,
    "bool": _boolean,
    "int": _integer,
    "float": _number,
    "json": _json,
}
