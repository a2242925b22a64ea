"""Qwen3.5 without its vision: three layers of a gated delta rule (arXiv 2412.06464) for each with attention.

Published folders hold `mtp.*` weights beside the model, which guess further tokens. Nobody here reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from forge_env.core.errors import UserError
from trainers.families.family import Experts, Family, check_size, gated_mlp
from trainers.families.rope import rope_parameters
from trainers.families.settings import SIZES, names
from trainers.families.shape import LinearAttention, ModelShape

_SIZES = {
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
"""Sizes that a config may leave out, with the values of transformers."""
_EXPERTS = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_STACKS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Tensors of all experts of a layer in published folders: (experts, rows of these matrices, columns)."""
_FACTOR = 0.25  # of a head that is rotated, if a config does not say it
_EVERY = 4  # every fourth layer has attention, if a config does not say it


@dataclass(frozen=True, kw_only=True)
class Qwen35(Family):
    """Layers with gated attention and layers with a gated delta rule, in any order."""

    optional: ClassVar[Mapping[str, int]] = _SIZES
    computed: frozenset[str] = names("full_attention_interval").union(_SIZES)
    rope_fields: frozenset[str] = names("partial_rotary_factor mrope_section mrope_interleaved")
    left_out: frozenset[str] = names("mtp_num_hidden_layers mtp_use_dedicated_embeddings")

    def check(self, config: Mapping[str, Any], path: Path) -> None:
        settings = {**self.optional, **config}
        for name in self.optional:
            check_size(settings[name], name, path)
        super().check(config, path)
        keys, values = settings["linear_num_key_heads"], settings["linear_num_value_heads"]
        if values % keys:
            raise UserError(
                f"{path} has linear_num_key_heads={keys}, which must divide linear_num_value_heads={values}."
            )

    def uncomputed(self, config: Mapping[str, Any]) -> list[str]:
        if problems := super().uncomputed(config):
            return problems
        factor, head = self.rope(config)["partial_rotary_factor"], config.get("head_dim", _SIZES["head_dim"])
        rope_dim = int(head * factor) if isinstance(factor, int | float) else 0
        if 0 < rope_dim <= head and rope_dim % 2 == 0:
            return []
        return [f"partial_rotary_factor {factor!r} of heads of {head}, which is no even part"]

    def uncomputed_windows(self, config: Mapping[str, Any]) -> list[str]:
        kinds = self.layer_types(config)
        kinds_known = {"full_attention", "linear_attention"}
        if len(kinds) != config["num_hidden_layers"] or not {"full_attention"} <= set(kinds) <= kinds_known:
            return [f"layer_types {kinds} instead of one full_attention or linear_attention for each layer"]
        return []

    def layer_types(self, config: Mapping[str, Any]) -> list[str]:
        every = config.get("full_attention_interval") or _EVERY
        layers = range(1, config["num_hidden_layers"] + 1)
        return config.get("layer_types") or [
            "linear_attention" if layer % every else "full_attention" for layer in layers
        ]

    def rope(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of its position embedding, with the part of a head that is rotated."""
        inner = config.get("rope_scaling") or config.get("rope_parameters") or {}
        factor = inner.get("partial_rotary_factor", config.get("partial_rotary_factor", _FACTOR))
        return {**rope_parameters(config), "partial_rotary_factor": factor}

    def linear(self, config: Mapping[str, Any]) -> LinearAttention:
        settings = {**_SIZES, **config}
        return LinearAttention(
            layers=self.layer_types(config).count("linear_attention"),
            key_heads=settings["linear_num_key_heads"],
            value_heads=settings["linear_num_value_heads"],
            key_dim=settings["linear_key_head_dim"],
            value_dim=settings["linear_value_head_dim"],
            kernel=settings["linear_conv_kernel_dim"],
        )

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        with_sizes = {"head_dim": _SIZES["head_dim"], **config}
        return replace(super().shape(with_sizes), gated_attention=True, linear=self.linear(config))

    def parts(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {} if name.startswith("mtp.") else {name: shape}

    def weights_of_layer(self, config: Mapping[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
        shape, linear = self.shape(config), self.linear(config)
        weights = super().weights_of_layer({"head_dim": shape.head_dim, **config}, layer)
        width, qkv_size, values = shape.hidden_size, linear.mixed_size, linear.value_size
        if self.layer_types(config)[layer] == "full_attention":
            return weights | {"self_attn.q_proj.weight": (2 * shape.query_size, width)}
        own: dict[str, tuple[int, ...]] = {
            "in_proj_qkv.weight": (qkv_size, width),
            "in_proj_z.weight": (values, width),
            "in_proj_b.weight": (linear.value_heads, width),
            "in_proj_a.weight": (linear.value_heads, width),
            "conv1d.weight": (qkv_size, 1, linear.kernel),
            "A_log": (linear.value_heads,),
            "dt_bias": (linear.value_heads,),
            "norm.weight": (linear.value_dim,),
            "out_proj.weight": (width, values),
        }
        return {f"linear_attn.{name}": size for name, size in own.items()} | {
            name: size for name, size in weights.items() if not name.startswith("self_attn.")
        }


@dataclass(frozen=True, kw_only=True)
class Qwen35Moe(Qwen35):
    """The same with a router, experts and a shared expert in the place of each MLP."""

    optional: ClassVar[Mapping[str, int]] = {**_SIZES, **_EXPERTS}
    sizes: tuple[str, ...] = tuple(name for name in SIZES if name != "intermediate_size")
    computed: frozenset[str] = Qwen35.computed.union(_EXPERTS)

    def experts(self, config: Mapping[str, Any]) -> Experts:
        count, active, size, _ = (config.get(name, usual) for name, usual in _EXPERTS.items())
        return Experts(count=count, active=active, size=size, normalised=True)

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        shared = {**_EXPERTS, **config}["shared_expert_intermediate_size"]
        return replace(super().shape(config), shared_size=shared, shared_gate=True)

    def mlp_weights(self, shape: ModelShape) -> dict[str, tuple[int, ...]]:
        gate = {"mlp.shared_expert_gate.weight": (1, shape.hidden_size)}
        return super().mlp_weights(shape) | gate | gated_mlp("mlp.shared_expert", shape.hidden_size, shape.shared_size)

    def parts(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        whole, (layer, _, stack) = super().parts(name, shape), name.rpartition(".mlp.experts.")
        matrices = _STACKS.get(stack, ())
        if not whole or not matrices or len(shape) != 3 or shape[1] % len(matrices):
            return whole
        size = shape[1] // len(matrices), shape[2]
        return {
            f"{layer}.mlp.experts.{expert}.{matrix}.weight": size for expert in range(shape[0]) for matrix in matrices
        }


_GPU = {"fla": "flash-linear-attention"}
_ONLY = {"attn_output_gate": True, "layer_scale": False}
_VISION = names(
    """image_token_id video_token_id vision_start_token_id vision_end_token_id depth in_channels num_heads
    num_position_embeddings out_hidden_size patch_size spatial_merge_size temporal_patch_size decoder_sparse_step"""
)
DENSE = Qwen35(
    model_type="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    builder="contrib.families.qwen3_5_model:Qwen35Builder",
    qk_norm=True,
    thinks=True,
    only=_ONLY,
    harmless=_VISION | names("moe_intermediate_size norm_topk_prob num_experts"),
    gpu_packages=_GPU,
)
EXPERTS = Qwen35Moe(
    model_type="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    builder="contrib.families.qwen3_5_model:Qwen35Builder",
    qk_norm=True,
    thinks=True,
    only={**_ONLY, "norm_topk_prob": True},
    harmless=_VISION,
    gpu_packages=_GPU,
)
