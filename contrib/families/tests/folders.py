"""Hugging Face folders of tiny random models of these families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import (
    Gemma3TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    Olmo3Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    SmolLM3Config,
)

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
UNTIED = {"olmo3", "glm4-moe"}
"""Families of `MODULES` whose output layer is not the embedding."""
KINDS: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
LOCAL_ROPE = {"rope_type": "default", "rope_theta": 1000.0}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}
# Transformers' own module is the trainer's model; dropout is nobody's in a run.
MODULES: Kinds = {
    "gemma3": (
        Gemma3TextConfig,
        {
            **KINDS,
            "head_dim": 32,
            "sliding_window": 24,
            "query_pre_attn_scalar": 48,
            "attention_dropout": 0.5,
            "rope_parameters": {"full_attention": LINEAR_ROPE, "sliding_attention": LOCAL_ROPE},
        },
    ),
    "olmo3": (
        Olmo3Config,
        {
            **KINDS,
            "sliding_window": 24,
            "attention_dropout": 0.5,
            "rope_parameters": {"full_attention": YARN_ROPE, "sliding_attention": LOCAL_ROPE},
        },
    ),
    "smollm3": (SmolLM3Config, {"num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0], "pad_token_id": 3}),
    "glm4-moe": (
        Glm4MoeConfig,
        {
            "head_dim": 32,
            "num_hidden_layers": 3,
            "attention_bias": True,
            "use_qk_norm": True,
            "moe_intermediate_size": 32,
            "num_experts_per_tok": 3,
            "n_routed_experts": 12,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
        },
    ),
}


def make_folder(folder: Path, family: str, *, tied: bool, **changes: Any) -> Path:
    """Save a random model of one of these families; the output layer of gpt-oss is never the embedding."""
    return save_random(folder, *{**FAMILIES, **MODULES}[family], _LARGE, **changes, tie_word_embeddings=tied)
