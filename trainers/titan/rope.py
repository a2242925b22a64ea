"""TorchTitan's position embeddings with the factor of queries and keys, as transformers and vLLM have it.

TorchTitan's own attention has no such factor. Here it is in the table of cosines and sines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.common import ComplexRoPE, CosSinRoPE

from trainers.families.rope import LLAMA3, attention_factor

_LLAMA3 = {"factor": "scaling_factor"}  # Hugging Face's name -> TorchTitan's, if they differ


class ScaledCosSinRoPE(CosSinRoPE):
    """Rotates pairs that lie half a head apart."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        attention_factor: float = 1.0

    def _precompute_cache(self) -> Tensor:
        cache: Tensor = super()._precompute_cache() * self.config.attention_factor
        return cache


class ScaledComplexRoPE(ComplexRoPE):
    """Rotates pairs of neighbours."""

    @dataclass(kw_only=True, slots=True)
    class Config(ComplexRoPE.Config):
        attention_factor: float = 1.0

    def _precompute_cache(self) -> Tensor:
        cache: Tensor = super()._precompute_cache() * self.config.attention_factor
        return cache


def scaling_of(rope: Mapping[str, Any]) -> dict[str, Any]:
    """The settings `rope` of `trainers.families.rope.rope_parameters` in TorchTitan's names."""
    theta = {"theta": rope["rope_theta"], "attention_factor": attention_factor(rope)}
    if rope["rope_type"] == "llama3":
        return theta | {"scaling": "llama"} | {_LLAMA3.get(name, name): rope[name] for name in LLAMA3}
    if rope["rope_type"] == "yarn":
        return theta | {
            "scaling": "yarn",
            "rope_factor": rope["factor"],
            "original_seq_len": rope["original_max_position_embeddings"],
            "beta_fast": rope.get("beta_fast", 32),
            "beta_slow": rope.get("beta_slow", 1),
            "truncate": bool(rope.get("truncate", True)),
        }
    return theta
