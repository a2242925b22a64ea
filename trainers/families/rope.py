"""The position embedding that a config.json asks for (RoPE, arXiv 2104.09864)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""The fields of rope_type "llama3", in Hugging Face's names."""


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope settings with rope_type and rope_theta; versions of transformers write them in different places."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    rope.setdefault("rope_theta", config.get("rope_theta") or 10000.0)
    rope.setdefault("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
    if config.get("original_max_position_embeddings"):  # transformers prefers this value
        rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    rope.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    return rope
