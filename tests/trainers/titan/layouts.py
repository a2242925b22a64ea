"""Settings of a trainer in words, such as "cp=2 ep=2 packed full"."""

from __future__ import annotations

from typing import Any

DEGREES = {
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
    "fsdp": "data_parallel_shard_degree",
    "hsdp": "data_parallel_replicate_degree",
    "tp": "tensor_parallel_degree",
}
PACKED = {"pack_length": 64, "max_tokens_per_micro_batch": 64}
WORDS: dict[str, dict[str, Any]] = {
    "packed": PACKED,
    "split": {"max_tokens_per_micro_batch": 48},
    "short": {"pack_length": 48, "max_tokens_per_micro_batch": 48},
    "full": {"activation_checkpoint": "full"},
    "selective": {"activation_checkpoint": "selective"},
    "always": {"reshard_after_forward": "always"},
    "never": {"reshard_after_forward": "never"},
    "compiled": {"compile": True, **PACKED},
    "wide": {"dtype": "bfloat16", "fp32_head": True},
}


def settings_of(words: str) -> dict[str, Any]:
    """Degrees, the layout of rows, what is computed again; "wide" is an output layer in float32 over bfloat16."""
    found: dict[str, Any] = {}
    for word in words.split():
        name, is_degree, number = word.partition("=")
        found |= {DEGREES[name]: int(number)} if is_degree else WORDS[word]
    return found


def cases_of(*cases: str) -> dict[str, dict[str, Any]]:
    """Each by its words."""
    return {words: settings_of(words) for words in cases}
