"""Llama 3, and Mistral, which is Llama with a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainers.families.family import Family, sizes
from trainers.families.settings import names

_8B = sizes(4096, 14336, 32, 32, 8, 128, 128256, 131072)


@dataclass(frozen=True, kw_only=True)
class Mistral(Family):
    """All layers attend to a window, if there is one."""

    computed: frozenset[str] = names("sliding_window")

    def windows(self, config: Mapping[str, Any]) -> list[int | None]:
        return [config.get("sliding_window", 4096)] * config["num_hidden_layers"]


FAMILIES = (
    Family(
        model_type="llama",
        architecture="LlamaForCausalLM",
        builder="trainers.titan.llama:LlamaBuilder",
        rope_types=("default", "llama3", "yarn"),
        published_sizes={"meta-llama/Llama-3.1-8B": _8B, "meta-llama/Llama-3.1-8B-Instruct": _8B},
    ),
    Mistral(
        model_type="mistral",
        architecture="MistralForCausalLM",
        builder="trainers.titan.llama:LlamaBuilder",
        rope_types=("default", "yarn"),
    ),
)
