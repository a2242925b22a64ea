"""The sizes of the models made on the spot, by the names of `model.size`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Sizes of a Qwen3, in Hugging Face's names. The defaults are the tiny model's, with half a million parameters."""

    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 1024
    rope_theta: float = 10_000.0
    vocab_size: int = 640
    """Upper bound; the tokenizer may need fewer entries."""
    tie_word_embeddings: bool = False
    """Whether the output layer is the embedding, as in Qwen3 of 0.6B to 4B."""
    num_experts: int = 0
    """Experts of each layer, instead of one MLP of `intermediate_size`; 0 for a dense model."""
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0

    @property
    def model_type(self) -> str:
        return "qwen3_moe" if self.num_experts else "qwen3"


MODEL_SIZES: Mapping[str, ModelSize] = {
    "tiny": ModelSize(),
    "100m": ModelSize(
        hidden_size=768,
        intermediate_size=2816,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        vocab_size=1024,
        # It learns to copy rare tokens in two thirds of the supervised steps: benchmarks/results/gpu.md.
        tie_word_embeddings=True,
    ),
    "tiny-moe": ModelSize(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=192),
}
"""By the name of the setting `model.size`."""
