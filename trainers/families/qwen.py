"""Qwen2.5, and Qwen3 with and without experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainers.families.family import Experts, Family, experts_of, sizes
from trainers.families.settings import names

_WINDOWS = names("sliding_window use_sliding_window max_window_layers")


@dataclass(frozen=True, kw_only=True)
class Qwen(Family):
    """All layers attend to a window, or none does."""

    rope_types: tuple[str, ...] = ("default", "yarn")
    computed: frozenset[str] = _WINDOWS

    def windows(self, config: Mapping[str, Any]) -> list[int | None]:
        window = _window(config) if "sliding_attention" in self.layer_types(config) else None
        return [window] * config["num_hidden_layers"]

    def uncomputed_windows(self, config: Mapping[str, Any]) -> list[str]:
        kinds = set(self.layer_types(config))
        if kinds != {"full_attention"} and (kinds != {"sliding_attention"} or _window(config) is None):
            settings = sorted((_WINDOWS | {"layer_types"}) & config.keys())
            values = ", ".join(f"{name} {config[name]}" for name in settings)
            return [f"windows other than one of all layers ({values})"]
        return []

    def layer_types(self, config: Mapping[str, Any]) -> list[str]:
        """Which layers attend to a window, as transformers decides it."""
        layers = range(config["num_hidden_layers"])
        first = len(layers) if _window(config) is None else config.get("max_window_layers", 28)
        return config.get("layer_types") or [
            "full_attention" if layer < first else "sliding_attention" for layer in layers
        ]


def _window(config: Mapping[str, Any]) -> int | None:
    return config.get("sliding_window", 4096) if config.get("use_sliding_window") else None


@dataclass(frozen=True, kw_only=True)
class Qwen3Moe(Family):
    """Qwen3 with experts in each layer instead of one MLP.

    Windows are refused: the engine's record of experts ends with the keys of a token, and so with its window.
    """

    rope_types: tuple[str, ...] = ("default", "yarn")
    computed: frozenset[str] = names(
        "num_experts num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob"
    )
    harmless: frozenset[str] = names("sliding_window max_window_layers")
    only: Mapping[str, Any] = field(default_factory=lambda: {"decoder_sparse_step": 1})

    def experts(self, config: Mapping[str, Any]) -> Experts:
        return experts_of(config, "num_experts", "num_local_experts", normalised=False)


FAMILIES = (
    Qwen(
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        builder="trainers.titan.builder:Builder",
        qk_norm=True,
        thinks=True,
        published_sizes={
            "Qwen/Qwen3-0.6B": sizes(1024, 3072, 28, 16, 8, 128, 151936, 40960, tie_word_embeddings=True),
            "Qwen/Qwen3-1.7B": sizes(2048, 6144, 28, 16, 8, 128, 151936, 40960, tie_word_embeddings=True),
            "Qwen/Qwen3-4B": sizes(2560, 9728, 36, 32, 8, 128, 151936, 40960, tie_word_embeddings=True),
            "Qwen/Qwen3-8B": sizes(4096, 12288, 36, 32, 8, 128, 151936, 40960),
            "Qwen/Qwen3-14B": sizes(5120, 17408, 40, 40, 8, 128, 151936, 40960),
            "Qwen/Qwen3-32B": sizes(5120, 25600, 64, 64, 8, 128, 151936, 40960),
        },
    ),
    Qwen3Moe(
        model_type="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        builder="trainers.titan.qwen:Qwen3MoeBuilder",
        qk_norm=True,
        thinks=True,
        published_sizes={"Qwen/Qwen3-30B-A3B": sizes(2048, 6144, 48, 32, 4, 128, 151936, 40960, experts=(128, 8, 768))},
    ),
    Qwen(
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        builder="trainers.titan.qwen:Qwen2Builder",
        qkv_bias=True,
        harmless=names("attention_bias"),  # it has the biases of its architecture, whatever this setting says
        published_sizes={
            "Qwen/Qwen2.5-7B-Instruct": sizes(3584, 18944, 28, 28, 4, 128, 152064, 32768),
            "Qwen/Qwen2.5-14B-Instruct": sizes(5120, 13824, 48, 40, 8, 128, 152064, 32768),
            "Qwen/Qwen2.5-32B-Instruct": sizes(5120, 27648, 64, 40, 8, 128, 152064, 32768),
        },
    ),
)
