"""GLM-4.5: dense layers first, then experts that a router chooses by the sigmoid of its scores and a bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from contrib.families.modules import PREDICTIONS, ModuleFamily
from trainers.families.family import Experts, experts_of, gated_mlp, is_size, sizes
from trainers.families.settings import names
from trainers.families.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class Glm4Moe(ModuleFamily):
    """The bias of the router balances its choice and is not part of the scores: it is never trained.

    The layers that predict further tokens are neither trained nor exported.
    """

    def _of(self, config: Mapping[str, Any]) -> Glm4Moe:
        """The family with what a config says of norms and biases of attention."""
        has: Any = config.get
        return replace(self, qk_norm=bool(has("use_qk_norm")), qkv_bias=bool(has("attention_bias")))

    def _first(self, config: Mapping[str, Any]) -> int:
        """The first layer with experts."""
        first: int = config.get("first_k_dense_replace", 1)
        return first

    def uncomputed(self, config: Mapping[str, Any]) -> list[str]:
        experts, layers = self.experts(config), config["num_hidden_layers"]
        groups, active_groups = config.get("n_group", 1), config.get("topk_group", 1)
        counts = {name: config[name] for name in ("n_group", "topk_group", "n_shared_experts") if name in config}
        if wrong := [f"{name} {value!r}" for name, value in counts.items() if not is_size(value)]:
            return wrong
        fits = experts.count % groups == 0 and active_groups <= groups and experts.count // groups > 1
        first = self._first(config)
        return [
            *super().uncomputed(config),
            *([] if first in range(layers) else [f"first_k_dense_replace {first!r} of {layers} layers"]),
            *([] if fits else [f"{active_groups} of {groups} groups of {experts.count} experts"]),
        ]

    def experts(self, config: Mapping[str, Any]) -> Experts:
        return experts_of(config, "n_routed_experts", "num_local_experts", normalised=True)

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        shape = super(Glm4Moe, self._of(config)).shape(config)
        shared = config.get("n_shared_experts", 1) * shape.moe_intermediate_size
        return replace(shape, shared_size=shared, dense_layers=self._first(config), gate_up=True)

    def weights_of_layer(self, config: Mapping[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
        weights, shape = super(Glm4Moe, self._of(config)).weights_of_layer(config, layer), self.shape(config)
        weights = {name: size for name, size in weights.items() if not name.startswith("mlp.")}
        count, width = shape.num_experts, shape.hidden_size
        if layer < shape.dense_layers:
            return weights | gated_mlp("mlp", width, shape.intermediate_size)
        weights |= {"mlp.gate.weight": (count, width), "mlp.gate.e_score_correction_bias": (count,)}
        weights |= gated_mlp("mlp.shared_experts", width, shape.shared_size)
        for expert in range(count):
            weights |= gated_mlp(f"mlp.experts.{expert}", width, shape.moe_intermediate_size)
        return weights


GLM4_MOE = Glm4Moe(
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    thinks=True,
    rope_fields=names("partial_rotary_factor"),
    computed=names(
        """attention_bias use_qk_norm n_routed_experts num_local_experts num_experts_per_tok moe_intermediate_size
        norm_topk_prob n_group topk_group n_shared_experts routed_scaling_factor first_k_dense_replace"""
    ),
    harmless=PREDICTIONS | names("num_mtp_layers"),
    only={"tie_word_embeddings": False},  # vLLM has an output layer of its own
    published_sizes={
        "zai-org/GLM-4.5-Air": sizes(4096, 10944, 46, 96, 8, 128, 151552, 131072, experts=(128, 8, 1408))
        | {"n_routed_experts": 128, "attention_bias": True}
    },
)
