"""Hugging Face folders of tiny random models, one for each family that the trainer knows."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Olmo3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

VOCABULARY = 97  # odd, as those of real tokenizers often are
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}
# Llama 3.1's with a short original length, so that all three ranges of wavelengths have frequencies in them.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
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
UNTIED = {"gpt-oss", "olmo3", "glm4-moe"}
"""Families whose output layer is not the embedding."""
_LARGE = {"sinks": 1.0, "gate_up_proj_bias": 5.0}
"""Deviations of weights of gpt-oss: sinks take a share of the softmax, and gates and ups reach their clamps."""
# name -> config class, and what is special about it
FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "qwen3": (Qwen3Config, {"head_dim": 24}),
    "qwen3-moe": (Qwen3MoeConfig, {"head_dim": 24, **EXPERTS}),
    "llama-3": (LlamaConfig, {}),
    "llama-3.2": (LlamaConfig, {"head_dim": 24, "rope_parameters": LLAMA3_ROPE}),
    "qwen2.5": (Qwen2Config, {}),
    "qwen3.5": (Qwen3_5TextConfig, HYBRID),
    "qwen3.5-moe": (Qwen3_5MoeTextConfig, HYBRID_MOE),
    "mistral": (MistralConfig, {"head_dim": 24, "sliding_window": 8}),
    "gpt-oss": (GptOssConfig, GPT_OSS),
}
KINDS: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
LOCAL_ROPE = {"rope_type": "default", "rope_theta": 1000.0}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}
# Transformers' own module is the trainer's model; dropout is nobody's in a run.
MODULES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
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
    """Save a random model; all its weights are random, also the biases and norms that usually start at 0 and 1."""
    torch.manual_seed(1)
    kind, special = {**FAMILIES, **MODULES}[family]
    settings = deepcopy({**SIZES, **special, "tie_word_embeddings": tied, **changes})  # it changes what it gets
    config = kind(**{name: value for name, value in settings.items() if value is not ...})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=_LARGE.get(name.rpartition(".")[2], 0.1))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # as large as the scores are apart
                buffer.add_(torch.randn_like(buffer), alpha=0.2)
    model.save_pretrained(folder)
    return folder
