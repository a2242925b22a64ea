"""gpt-oss: experts with biases in each layer, attention with sinks, and a window in every second layer.

vLLM 0.32 computes its norms, its clamped SwiGLU, its windows and its biases in one way, whatever config.json says. What
a config says otherwise is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from trainers.families.family import Experts, Family, check_size, sizes
from trainers.families.rope import rope_parameters
from trainers.families.shape import ModelShape

EPS, WINDOW = 1e-5, 128
"""Of its norms and its windows, if config.json does not say."""
BLOCK = 32
"""Numbers of MXFP4 that share a scale."""
_KINDS = {True: "sliding_attention", False: "full_attention"}
_YARN = ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings", "rope_theta")
_VALUES = {
    "rms_norm_eps": EPS,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}
"""The only value of a setting that vLLM and the trainer compute."""


@dataclass(frozen=True, kw_only=True)
class GptOss(Family):
    """gpt-oss, with weights in bfloat16 or float32, or as published, with experts in MXFP4."""

    def check(self, config: Mapping[str, Any], path: Path) -> None:
        for name in ("num_local_experts", "num_experts_per_tok"):
            check_size(self._sizes(config)[name], name, path)
        super().check(config, path)
        experts = self.experts(config)
        if experts.active > experts.count:
            raise UserError(
                f"{path} has num_experts_per_tok={experts.active}, which cannot be more than "
                f"num_local_experts={experts.count}."
            )

    def unsupported(self, config: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        rope = {"rope_theta": config.get("rope_theta")} | given
        missing = [name for name in _YARN if rope.get(name) is None]
        others = [name for name in ("attention_factor", "mscale", "mscale_all_dim") if rope.get(name) is not None]
        layers = [_KINDS[slides(layer)] for layer in range(config["num_hidden_layers"])]
        window = config.get("sliding_window", WINDOW)
        method = (config.get("quantization_config") or {}).get("quant_method")
        return {
            f"rope scaling {rope_parameters(config)['rope_type']!r}": rope_parameters(config)["rope_type"] != "yarn",
            f"rope scaling 'yarn' without {', '.join(missing)}": missing,
            f"rope scaling 'yarn' with {', '.join(others)}": others,
            f"partial_rotary_factor {rope.get('partial_rotary_factor')}": rope.get("partial_rotary_factor", 1.0) != 1.0,
            f"sliding_window {window!r}": not isinstance(window, int) or window < 1,
            f"layer_types other than {_KINDS[True]} and {_KINDS[False]} in turn": (config.get("layer_types") or layers)
            != layers,
            f"quantized weights ({method})": method not in (None, "mxfp4"),
        } | {f"{name} {config.get(name)!r}": config.get(name, value) != value for name, value in _VALUES.items()}

    def _sizes(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers of experts; transformers reads two names for their number."""
        count = config.get("num_local_experts") or config.get("num_experts")
        return {"num_local_experts": count, "num_experts_per_tok": config.get("num_experts_per_tok")}

    def experts(self, config: Mapping[str, Any]) -> Experts:
        numbers = self._sizes(config)
        return Experts(
            count=numbers["num_local_experts"],
            active=numbers["num_experts_per_tok"],
            size=config["intermediate_size"],
            normalised=True,
        )

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        shape = super().shape(config)
        of_experts = shape.num_experts * (1 + 2 * shape.moe_intermediate_size + shape.hidden_size)
        others = shape.num_attention_heads + shape.hidden_size + of_experts  # sinks, and the bias of the output
        return replace(shape, vectors_of_layer=shape.vectors_of_layer + others)

    def weights_of_layer(self, config: Mapping[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
        weights = super().weights_of_layer(config, layer)
        if not is_quantized(config):
            return weights
        for name in ("gate_up_proj", "down_proj"):
            count, inputs, outputs = weights.pop(f"mlp.experts.{name}")
            weights[f"mlp.experts.{name}_blocks"] = (count, outputs, inputs // BLOCK, BLOCK // 2)
            weights[f"mlp.experts.{name}_scales"] = (count, outputs, inputs // BLOCK)
        return weights

    def mlp_weights(self, shape: ModelShape) -> dict[str, tuple[int, ...]]:
        count, width, inner = shape.num_experts, shape.hidden_size, shape.moe_intermediate_size
        return {
            "self_attn.o_proj.bias": (width,),
            "self_attn.sinks": (shape.num_attention_heads,),
            "mlp.router.weight": (count, width),
            "mlp.router.bias": (count,),
            "mlp.experts.gate_up_proj": (count, width, 2 * inner),
            "mlp.experts.gate_up_proj_bias": (count, 2 * inner),
            "mlp.experts.down_proj": (count, inner, width),
            "mlp.experts.down_proj_bias": (count, width),
        }


def slides(layer: int) -> bool:
    """Whether a layer attends to a window only."""
    return layer % 2 == 0


def is_quantized(config: Mapping[str, Any]) -> bool:
    """Whether the experts of a folder are in MXFP4, as in the published ones."""
    return bool(config.get("quantization_config"))


FAMILIES = (
    GptOss(
        model_type="gpt_oss",
        architecture="GptOssForCausalLM",
        builder="trainers.titan.gpt_oss:GptOssBuilder",
        rope_types=("yarn",),
        qkv_bias=True,
        thinks=True,
        known={
            "openai/gpt-oss-20b": sizes(2880, 2880, 24, 64, 8, 64, 201088, 131072, experts=(32, 4, 2880)),
            "openai/gpt-oss-120b": sizes(2880, 2880, 36, 64, 8, 64, 201088, 131072, experts=(128, 4, 2880)),
        },
    ),
)
