"""Hugging Face folders of tiny random models, one for each family of the heart."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
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
Kinds = dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]]
"""The config class of each family, and what is special about it."""
FAMILIES: Kinds = {
    "qwen3": (Qwen3Config, {"head_dim": 24}),
    "qwen3-moe": (Qwen3MoeConfig, {"head_dim": 24, **EXPERTS}),
    "llama-3": (LlamaConfig, {}),
    "llama-3.2": (LlamaConfig, {"head_dim": 24, "rope_parameters": LLAMA3_ROPE}),
    "qwen2.5": (Qwen2Config, {}),
    "mistral": (MistralConfig, {"head_dim": 24, "sliding_window": 8}),
}


def make_folder(folder: Path, family: str, *, tied: bool, **changes: Any) -> Path:
    """Save a random model of one of these families."""
    return save_random(folder, *FAMILIES[family], **changes, tie_word_embeddings=tied)


def save_random(
    folder: Path,
    kind: type[PreTrainedConfig],
    special: Mapping[str, Any],
    deviations: Mapping[str, float] | None = None,
    **changes: Any,
) -> Path:
    """Save a random model; all its weights are random, also the biases and norms that usually start at 0 and 1.

    `deviations` are those of weights by the last part of their names, if they are not 0.1.
    """
    torch.manual_seed(1)
    settings = deepcopy({**SIZES, **special, **changes})  # it changes what it gets
    config = kind(**{name: value for name, value in settings.items() if value is not ...})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            alpha = (deviations or {}).get(name.rpartition(".")[2], 0.1)
            parameter.add_(torch.randn_like(parameter), alpha=alpha)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # as large as the scores are apart
                buffer.add_(torch.randn_like(buffer), alpha=0.2)
    model.save_pretrained(folder)
    return folder
