"""Qwen2.5 and Qwen3 with experts, which differ from the Qwen3 of builder.py.

TorchTitan has no Qwen2.5. Here it is TorchTitan's Qwen3 without the norms of queries and keys, and with biases in their
projections; TorchTitan's sharding and fused projections know these. Qwen3 with experts is TorchTitan's Qwen3 with the
layers of experts.py.
"""

from __future__ import annotations

import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.qwen3.model import Qwen3Model
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

from trainers.titan.builder import Builder
from trainers.titan.experts import ReplayedBlock, ReplayedModel


class Qwen2StateDictAdapter(Qwen3StateDictAdapter):
    """Names of Qwen2.5: Qwen3's names, and the biases of the query, key and value projections."""

    def __init__(self, model_config: Qwen3Model.Config, hf_assets_path: str | None) -> None:
        super().__init__(model_config, hf_assets_path)
        for letter in "qkv":
            name = f"model.layers.{{}}.self_attn.{letter}_proj.bias"
            self.from_hf_map[name] = f"layers.{{}}.attention.qkv_linear.w{letter}.bias"


class Qwen2Builder(Builder):
    """Builds Qwen2.5."""

    adapter = Qwen2StateDictAdapter


class Qwen3MoeBuilder(Builder):
    """Builds Qwen3 with experts."""

    model = ReplayedModel.Config
    block = ReplayedBlock.Config
