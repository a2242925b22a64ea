"""Llama 3 in TorchTitan's terms.

Its queries and keys are rotated as complex numbers, in pairs of neighbours. Hugging Face stores their weights for pairs
that lie half a head apart. TorchTitan's adapter reorders the rows on the way in and out.
"""

from __future__ import annotations

from typing import Any

# First of all TorchTitan imports: it settles the device for the others.
import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.common import ComplexRoPE
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.models.llama3.sharding import set_llama3_sharding_config
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter

from trainers.families.rope import LLAMA3, rope_parameters
from trainers.titan.builder import Builder

_TITAN_ROPE = {"factor": "scaling_factor"}  # Hugging Face's name -> TorchTitan's, if they differ


class LlamaBuilder(Builder):
    """Builds Llama 3."""

    model = Llama3Model.Config
    block = Llama3TransformerBlock.Config
    rope = ComplexRoPE.Config
    adapter = Llama3StateDictAdapter

    def rope_scaling(self) -> dict[str, Any]:
        rope = rope_parameters(self.hf)
        if rope["rope_type"] != "llama3":
            return {}
        return {"scaling": "llama"} | {_TITAN_ROPE.get(name, name): rope[name] for name in LLAMA3}

    def shard(self, config: Any, *, enable_sp: bool, enable_ep: bool) -> None:
        set_llama3_sharding_config(config, enable_sp=enable_sp)

    def parallelize(self, module: Any, *, skip_dp: bool, **settings: Any) -> Any:
        # parallelize_llama always wraps a model in FSDP. Without FSDP parallelize_qwen3 does what it would do.
        return (
            super().parallelize(module, skip_dp=True, **settings) if skip_dp else parallelize_llama(module, **settings)
        )
