"""gpt-oss: experts with biases in each layer, attention with sinks, and a window in every second layer.

vLLM 0.32 computes its norms, its clamped SwiGLU, its windows and its biases in one way, whatever config.json says. What
a config says otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainers.families.family import Experts, Family, experts_of, sizes
from trainers.families.rope import rope_parameters
from trainers.families.settings import names
from trainers.families.shape import ModelShape

EPS = 1e-5
BLOCK = 32
"""Numbers of MXFP4 that share a scale."""
_KINDS = "sliding_attention", "full_attention"
_VALUES = {
    "rms_norm_eps": EPS,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
_NEEDED = ("beta_fast", "beta_slow")
_IGNORED = ("attention_factor", "mscale", "mscale_all_dim")
"""Fields of yarn that transformers computes and vLLM ignores."""


@dataclass(frozen=True, kw_only=True)
class GptOss(Family):
    """gpt-oss, with weights in bfloat16 or float32, or with experts in MXFP4 as they were published."""

    rope_types: tuple[str, ...] = ("yarn",)
    qkv_bias: bool = True
    computed: frozenset[str] = names(
        "num_experts num_local_experts num_experts_per_tok sliding_window attention_bias quantization_config"
    )
    only: Mapping[str, Any] = field(default_factory=lambda: dict(_VALUES))

    def quantization(self, config: Mapping[str, Any]) -> str:
        return "experts in MXFP4" if config.get("quantization_config") else ""

    def uncomputed(self, config: Mapping[str, Any]) -> list[str]:
        rope, method = rope_parameters(config), (config.get("quantization_config") or {}).get("quant_method")
        rope_settings = config.get("rope_theta") or (config.get("rope_parameters") or config.get("rope_scaling") or {})
        missing = [name for name in _NEEDED if rope.get(name) is None]
        missing += ["rope_theta"] if isinstance(rope_settings, dict) and not rope_settings.get("rope_theta") else []
        return [
            *super().uncomputed(config),
            *([f"yarn without {', '.join(missing)}"] if missing else []),
            *(f"{name} {rope[name]!r} of yarn" for name in _IGNORED if rope.get(name) is not None),
            *([f"weights quantized by {method}"] if method not in (None, "mxfp4") else []),
        ]

    def windows(self, config: Mapping[str, Any]) -> list[int | None]:
        window = config.get("sliding_window", 128)
        return [None if layer % 2 else window for layer in range(config["num_hidden_layers"])]

    def uncomputed_windows(self, config: Mapping[str, Any]) -> list[str]:
        kinds = config.get("layer_types")
        if kinds and kinds != [_KINDS[layer % 2] for layer in range(config["num_hidden_layers"])]:
            return [f"layer_types other than {' and '.join(_KINDS)} in turn"]
        return [] if config.get("sliding_window", 128) else [f"sliding_window {config['sliding_window']!r}"]

    def experts(self, config: Mapping[str, Any]) -> Experts:
        value: Any = config.get
        experts = experts_of(config, "num_local_experts", "num_experts", normalised=True)
        return replace(experts, size=value("intermediate_size"), normalised=True)

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        shape = super().shape(config)
        of_experts = shape.num_experts * (1 + 2 * shape.moe_intermediate_size + shape.hidden_size)
        others = shape.num_attention_heads + shape.hidden_size + of_experts  # sinks, and the bias of the output
        # Gate and up, both clamped, the sigmoid, the activated gate, the product.
        return replace(shape, vectors_of_layer=shape.vectors_of_layer + others, gate_up=True, mlp_numbers=7)

    def weights_of_layer(self, config: Mapping[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
        weights = super().weights_of_layer(config, layer)
        if not self.quantization(config):
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


GPT_OSS = GptOss(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    builder="contrib.families.gpt_oss_model:GptOssBuilder",
    thinks=True,
    dequantizer="contrib.families.mxfp4:write_bfloat16",
    published_sizes={
        "openai/gpt-oss-20b": sizes(2880, 2880, 24, 64, 8, 64, 201088, 131072, experts=(32, 4, 2880)),
        "openai/gpt-oss-120b": sizes(2880, 2880, 36, 64, 8, 64, 201088, 131072, experts=(128, 4, 2880)),
    },
)
