"""The model families that can be trained, and the supported settings of config.json: known before any download.

    FAMILIES[model_type]    the facts of an architecture that a plan and the trainer share
    read_config(folder)     its config.json; refuses settings that would not be computed

`trainers/titan/families.py` says how TorchTitan builds each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.model_folder import config_of
from forge_env.core.errors import UserError

_SIZES = (
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "vocab_size",
    "max_position_embeddings",
)
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim")
LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""The fields of rope_type "llama3", in Hugging Face's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture of Hugging Face."""

    architecture: str
    """Its name in config.json."""
    rope_types: tuple[str, ...] = ("default",)
    qk_norm: bool = False
    """Whether queries and keys are normalised."""
    qkv_bias: bool = False
    """Whether the projections of queries, keys and values have a bias."""
    thinks: bool = False
    """Whether its models may think before they answer; the renderer tells this of a folder."""
    has_experts: bool = False
    """Whether each layer has experts instead of one MLP; a router chooses a few of them for each token."""


# model_type of config.json -> family
FAMILIES = {
    "qwen3": Family(architecture="Qwen3ForCausalLM", qk_norm=True, thinks=True),
    "qwen3_moe": Family(architecture="Qwen3MoeForCausalLM", qk_norm=True, thinks=True, has_experts=True),
    "llama": Family(architecture="LlamaForCausalLM", rope_types=("default", "llama3")),
    "qwen2": Family(architecture="Qwen2ForCausalLM", qkv_bias=True),
}


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a family that can be trained, in which every setting would be computed."""
    config, path = config_of(folder), folder / "config.json"
    architecture = (config.get("architectures") or [config.get("model_type", "unknown")])[0]
    family = FAMILIES.get(config.get("model_type", ""))
    # A folder made by hand may leave the architecture out; then the model type counts.
    if family is None or architecture not in (family.architecture, config["model_type"]):
        known = ", ".join(family.architecture for family in FAMILIES.values())
        raise UserError(f"{path} is a {architecture}: only {known} can be trained.")
    for name in (*_SIZES, *(name for name in _OPTIONAL_SIZES if config.get(name) is not None)):
        _check_size(config.get(name), name, path)
    heads, kv_heads, _ = head_sizes(config)
    if heads % kv_heads:
        raise UserError(f"{path} has num_key_value_heads={kv_heads}, which must divide num_attention_heads={heads}.")
    for what in _unsupported(config, family):
        raise UserError(f"{path} asks for {what}, which the trainer does not support for {architecture}.")
    if family.has_experts:
        _check_experts(config, path)
    return config


def _check_size(value: Any, name: str, path: Path) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{path} says {name} = {value!r}: a language model has a whole number above 0 there")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of each layer of a mixture-of-experts model."""

    count: int
    """The number of experts."""
    active: int
    """The number of experts that the router chooses for a token."""
    size: int
    """The width of one expert's MLP."""
    normalised: bool
    """Whether the router's scores of the chosen experts are divided by their sum."""


def read_experts(config: Mapping[str, Any]) -> Experts | None:
    """The experts of a config; None for a dense model."""
    if not FAMILIES[config["model_type"]].has_experts:
        return None
    return Experts(
        count=_expert_count(config),
        active=config["num_experts_per_tok"],
        size=config["moe_intermediate_size"],
        normalised=bool(config.get("norm_topk_prob", False)),
    )


def _expert_count(config: Mapping[str, Any]) -> Any:
    """The number of experts; two versions of transformers have two names for it."""
    return config.get("num_experts") or config.get("num_local_experts")


def _check_experts(config: Mapping[str, Any], path: Path) -> None:
    active, count = config.get("num_experts_per_tok"), _expert_count(config)
    sizes = {"num_experts": count, "num_experts_per_tok": active}
    for name, size in (sizes | {"moe_intermediate_size": config.get("moe_intermediate_size")}).items():
        _check_size(size, name, path)
    if active > count:
        raise UserError(f"{path} has num_experts_per_tok={active}, which cannot be more than num_experts={count}.")


def head_sizes(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Number of query heads, number of key and value heads, and size of one head."""
    heads = config["num_attention_heads"]
    return heads, config.get("num_key_value_heads") or heads, config.get("head_dim") or config["hidden_size"] // heads


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope settings with rope_type and rope_theta; versions of transformers write them in different places."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    rope.setdefault("rope_theta", config.get("rope_theta") or 10000.0)
    rope.setdefault("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
    if config.get("original_max_position_embeddings"):  # transformers prefers this value
        rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    rope.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    return rope


def _unsupported(config: Mapping[str, Any], family: Family) -> list[str]:
    rope = rope_parameters(config)
    missing = [name for name in LLAMA3_ROPE if rope.get(name) is None] if rope["rope_type"] == "llama3" else []
    unsupported = {
        f"rope scaling {rope['rope_type']!r}": rope["rope_type"] not in family.rope_types,
        f"rope scaling 'llama3' without {', '.join(missing)}": missing,
        f"partial_rotary_factor {rope['partial_rotary_factor']}": rope["partial_rotary_factor"] != 1.0,
        "sliding windows": _slides(config),
        # Qwen2.5 has the biases of its architecture, whatever this setting says.
        "attention_bias": config.get("attention_bias") and not family.qkv_bias,
        "mlp_bias": config.get("mlp_bias"),
        f"hidden_act {config.get('hidden_act')!r}": config.get("hidden_act", "silu") != "silu",
        "quantized weights": config.get("quantization_config"),
        "dense layers between those with experts": family.has_experts
        and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1),
    }
    return [what for what, is_so in unsupported.items() if is_so]


def _slides(config: Mapping[str, Any]) -> bool:
    """Whether any layer attends to a window only; if there are layer_types, transformers decides by them."""
    if config.get("layer_types"):
        return any(kind != "full_attention" for kind in config["layer_types"])
    from_layer = config.get("max_window_layers", 28)
    return bool(config.get("use_sliding_window")) and from_layer < config["num_hidden_layers"]
