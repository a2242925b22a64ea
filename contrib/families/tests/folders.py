"""Hugging Face folders of tiny random models of these families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import GptOssConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

from tests.trainers.titan.folders import Kinds, save_random

# Both kinds of layers, shared keys, and a head of which a part is rotated.
HYBRID: dict[str, Any] = {
    "head_dim": 32,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
}
HYBRID_MOE = {
    **HYBRID,
    "num_hidden_layers": 4,
    "layer_types": ...,  # not in its config: it follows from the next one
    "full_attention_interval": 2,
    "intermediate_size": ...,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
# Rows of 100 tokens are longer than the windows, and than the positions that yarn leaves as they are.
GPT_OSS: dict[str, Any] = {
    "head_dim": 32,
    "intermediate_size": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 5000.0,
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
}
_LARGE = {"sinks": 1.0, "gate_up_proj_bias": 5.0}
"""Deviations of weights of gpt-oss: sinks take a share of the softmax, and gates and ups reach their clamps."""
FAMILIES: Kinds = {
    "qwen3.5": (Qwen3_5TextConfig, HYBRID),
    "qwen3.5-moe": (Qwen3_5MoeTextConfig, HYBRID_MOE),
    "gpt-oss": (GptOssConfig, GPT_OSS),
}


def make_folder(folder: Path, family: str, *, tied: bool, **changes: Any) -> Path:
    """Save a random model of one of these families; the output layer of gpt-oss is never the embedding."""
    return save_random(folder, *FAMILIES[family], _LARGE, **changes, tie_word_embeddings=tied)
