"""Llama 3 in TorchTitan's terms.

Its queries and keys are rotated as complex numbers, in pairs of neighbours. Hugging Face stores their weights for pairs
that lie half a head apart. TorchTitan's adapter reorders the rows on the way in and out.
"""

from __future__ import annotations

from typing import Any

import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.models.llama3.sharding import set_llama3_sharding_config
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter

from trainers.titan.builder import Builder
from trainers.titan.rope import ScaledComplexRoPE


class LlamaBuilder(Builder):
    """Builds Llama 3."""

    model = Llama3Model.Config
    block = Llama3TransformerBlock.Config
    rope = ScaledComplexRoPE.Config
    adapter = Llama3StateDictAdapter

    def shard(self, config: Any, *, enable_sp: bool, enable_ep: bool) -> None:
        set_llama3_sharding_config(config, enable_sp=enable_sp)

    def parallelize(self, module: Any, *, skip_dp: bool, **settings: Any) -> Any:
        # parallelize_llama always wraps a model in FSDP. Without FSDP parallelize_qwen3 does what it would do.
        return (
            super().parallelize(module, skip_dp=True, **settings) if skip_dp else parallelize_llama(module, **settings)
        )
