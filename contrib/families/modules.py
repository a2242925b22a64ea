"""Families that the trainer computes with transformers' own module. A family that needs nothing more is one here.

Only FSDP shares such a model between processes. It has no adapters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainers.families.family import Family, is_size, sizes
from trainers.families.settings import names
from trainers.families.shape import ModelShape

FULL, SLIDING = "full_attention", "sliding_attention"
_TWO_NORMS = ("input_layernorm", "post_attention_layernorm")
_ROPE = names("rope_parameters rope_scaling rope_theta rope_local_base_freq")
_PATTERN = "sliding_window_pattern"


@dataclass(frozen=True, kw_only=True)
class ModuleFamily(Family):
    """Decoders with grouped queries and gated MLPs, computed by transformers."""

    builder: str = "contrib.families.modules_model:ModuleBuilder"
    norms: tuple[str, ...] = _TWO_NORMS
    """The norms of a layer over the whole width."""
    joint_qk_norm: bool = False
    """Whether queries and keys are normalised over all heads together."""
    full_every: int = 1
    """Without `layer_types`, layers with a multiple of this number have no window; they count from 1."""
    rope_of_kinds: bool = False
    """Whether layers with a window have rope settings of their own."""

    def layer_types(self, config: Mapping[str, Any]) -> list[str]:
        """For each layer whether it attends to a window, as transformers decides it."""
        every = config.get(_PATTERN, self.full_every) if _PATTERN in self.computed else self.full_every
        layers = range(1, config["num_hidden_layers"] + 1)
        return config.get("layer_types") or [FULL if layer % every == 0 else SLIDING for layer in layers]

    def windows(self, config: Mapping[str, Any]) -> list[int | None]:
        window = config.get("sliding_window", 4096)
        return [window if kind == SLIDING else None for kind in self.layer_types(config)]

    def uncomputed_windows(self, config: Mapping[str, Any]) -> list[str]:
        kinds = self.layer_types(config)
        layer_kinds = {FULL, SLIDING} if "sliding_window" in self.computed else {FULL}
        if not set(kinds) <= layer_kinds or len(kinds) != config["num_hidden_layers"]:
            return [f"layer_types {kinds}"]
        if SLIDING in kinds and config.get("sliding_window", 4096) is None:
            return ["sliding_window None with layers of windows"]
        return []

    def uncomputed(self, config: Mapping[str, Any]) -> list[str]:
        if _PATTERN in self.computed and not is_size(every := config.get(_PATTERN, self.full_every)):
            return [f"{_PATTERN} {every!r}"]
        if self.rope_of_kinds and config.get("rope_scaling") and config.get("rope_parameters"):
            return ["rope_scaling beside rope_parameters"]
        rope_settings = config.get("rope_parameters")
        if self.rope_of_kinds and isinstance(rope_settings, dict) and rope_settings.keys() - {FULL, SLIDING}:
            return [f"rope_parameters of {', '.join(sorted(rope_settings))} instead of {FULL} and {SLIDING}"]
        return super().uncomputed(config)

    def ropes(self, config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if not self.rope_of_kinds:
            yield config
            return
        plain = {name: value for name, value in config.items() if name not in _ROPE}
        rope_settings = config.get("rope_parameters")
        if not isinstance(rope_settings, dict):  # the names of old folders
            local = config.get("rope_local_base_freq") or config.get("rope_theta")
            yield config
            yield plain | ({"rope_theta": local} if local else {})
            return
        for each in rope_settings.values():
            yield plain | {"rope_parameters": each}

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        shape = super().shape(config)
        norms, queries_and_keys = len(self.norms) * shape.hidden_size, shape.query_size + shape.key_value_size
        vectors = shape.vectors_of_layer + norms + self.joint_qk_norm * queries_and_keys - 2 * shape.hidden_size
        return replace(
            shape,
            vectors_of_layer=vectors,
            norms=len(self.norms),
            plain_norms=norms + (self.qk_norm or self.joint_qk_norm) * queries_and_keys,
            shares_by_fsdp_only=True,
        )

    def weights_of_layer(self, config: Mapping[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
        shape = self.shape(config)
        weights = {
            name: size
            for name, size in super().weights_of_layer(config, layer).items()
            if name.removesuffix(".weight") not in _TWO_NORMS
        }
        weights |= {f"{name}.weight": (shape.hidden_size,) for name in self.norms}
        if self.joint_qk_norm:
            weights |= {"self_attn.q_norm.weight": (shape.query_size,)}
            weights |= {"self_attn.k_norm.weight": (shape.key_value_size,)}
        return weights


_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
PREDICTIONS = names("mtp_num_hidden_layers n_predict num_nextn_predict_layers")

GEMMA3 = ModuleFamily(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    qk_norm=True,
    norms=("input_layernorm", "pre_feedforward_layernorm", *_AFTER),
    full_every=6,
    rope_of_kinds=True,
    rope_types=("default", "linear"),
    computed=names(f"sliding_window query_pre_attn_scalar rope_local_base_freq {_PATTERN}"),
    harmless=names("image_token_id mm_tokens_per_image"),
    only={
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": False,
    },
    published_sizes={
        "google/gemma-3-270m-it": sizes(640, 2048, 18, 4, 1, 256, 262144, 32768, tie_word_embeddings=True),
        "google/gemma-3-1b-it": sizes(1152, 6912, 26, 4, 1, 256, 262144, 32768, tie_word_embeddings=True),
    },
)
OLMO3 = ModuleFamily(
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    joint_qk_norm=True,
    norms=_AFTER,
    full_every=4,
    rope_of_kinds=True,
    rope_types=("default", "yarn"),
    computed=names("sliding_window"),
    harmless=PREDICTIONS,
    published_sizes={"allenai/Olmo-3-7B-Instruct": sizes(4096, 11008, 32, 32, 32, 128, 100278, 65536)},
)
SMOLLM3 = ModuleFamily(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    rope_types=("default", "yarn"),
    computed=names("no_rope_layers no_rope_layer_interval"),
    harmless=PREDICTIONS,
    published_sizes={
        "HuggingFaceTB/SmolLM3-3B": sizes(2048, 11008, 36, 16, 4, 128, 128256, 65536, tie_word_embeddings=True)
    },
)
