"""Llama 3."""

from __future__ import annotations

from trainers.families.family import Family, sizes

_8B = sizes(4096, 14336, 32, 32, 8, 128, 128256, 131072)

FAMILIES = (
    Family(
        model_type="llama",
        architecture="LlamaForCausalLM",
        builder="trainers.titan.llama:LlamaBuilder",
        rope_types=("default", "llama3"),
        known={"meta-llama/Llama-3.1-8B": _8B, "meta-llama/Llama-3.1-8B-Instruct": _8B},
    ),
)
