"""Transformers' own module as the trainer's model, for the families of `trainers/families/transformers.py`.

Its weights have Hugging Face's names and layouts. Masks come from `TitanModel`: one for each window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# First of all TorchTitan imports: it settles the device for the others.
import trainers.titan.device  # noqa: F401  # isort: skip
from torch.nn.attention.flex_attention import BlockMask, and_masks
from torchtitan.distributed.compile import apply_compile
from torchtitan.models.common.attention import (
    create_attention_mask,
    get_causal_mask_mod,
    get_efficient_causal_mask_mod_for_packed_document,
)

from trainers.titan.builder import Builder
from trainers.titan.wide_head import shard

_KERNELS = {"sdpa": "sdpa", "flex": "flex_attention"}
"""Our name of an attention kernel -> transformers'."""

_UNUSED = {"attention_dropout": 0.0, "pad_token_id": None}
"""Nothing is dropped, and the embedding's row of the padding token is trained as the others."""


class Module(nn.Module):
    """A model of transformers with the parts, and the arguments, of a TorchTitan decoder.

    Args:
        windows: of each layer; None is no bound.
        attention: "sdpa" or "flex".
    """

    def __init__(self, config: ModuleConfig, windows: Sequence[int | None], attention: str) -> None:
        super().__init__()
        kind: Any = CONFIG_MAPPING[config.hf["model_type"]]
        hf = kind.from_dict(dict(config.hf) | _UNUSED)
        whole: Any = AutoModelForCausalLM.from_config(hf, dtype=torch.float32, attn_implementation=_KERNELS[attention])
        self.model, self.lm_head = whole.model, whole.lm_head
        self.enable_weight_tying = config.enable_weight_tying
        kinds = getattr(hf, "layer_types", None) or ["full_attention"] * len(windows)
        self._windows = dict(zip(kinds, windows, strict=True))
        self._init_part = whole._init_weights

    @property
    def layers(self) -> nn.ModuleList:
        layers: nn.ModuleList = self.model.layers
        return layers

    @property
    def norm(self) -> nn.Module:
        norm: nn.Module = self.model.norm
        return norm

    @property
    def tok_embeddings(self) -> nn.Module:
        embedding: nn.Module = self.model.embed_tokens
        return embedding

    def init_weights(self, buffer_device: torch.device | None = None) -> None:
        """Compute what no file has: tables of positions and constants. Tie the output layer, if it is the embedding."""
        if self.enable_weight_tying:
            self.lm_head.weight = self.model.embed_tokens.weight
        for parameter in self.parameters():
            parameter._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers then leaves it
        for part in self.modules():
            if part._buffers:
                self._init_part(part)
                for name, buffer in part._buffers.items():
                    part._buffers[name] = None if buffer is None else buffer.to(buffer_device)

    def get_attention_masks(self, positions: Tensor) -> BlockMask:
        """The mask of layers without a window, for flex."""
        return self._create_flex_attention_mask(
            positions, None, [get_causal_mask_mod(), get_efficient_causal_mask_mod_for_packed_document(positions)]
        )

    def _create_flex_attention_mask(self, positions: Tensor, _: None, mods: Sequence[Any]) -> BlockMask:
        count, length = positions.shape
        mask: BlockMask = create_attention_mask(and_masks(*mods), count, None, length, length, device=positions.device)
        return mask

    def forward(self, tokens: Tensor, positions: Tensor | None = None, attention_masks: Any = None) -> Any:
        """Run the model; returns what its output layer returns.

        Args:
            tokens: (B, L) int64.
            positions: (B, L) int64 that restart at 0 with each packed row; None when each sequence is one row.
            attention_masks: the mask of all layers, or a dict of masks by window.
        """
        masks = attention_masks if isinstance(attention_masks, dict) else None
        of_kind = {kind: masks[window] if masks else attention_masks for kind, window in self._windows.items()}
        output = self.model(input_ids=tokens, position_ids=positions, attention_mask=of_kind, use_cache=False)
        return self.lm_head(output.last_hidden_state)


@dataclass(frozen=True, kw_only=True)
class ModuleConfig:
    """What `TitanModel` asks of the config of a TorchTitan decoder."""

    hf: Mapping[str, Any]
    windows: Sequence[int | None]
    attention: str
    first_attention: None = None

    @property
    def vocab_size(self) -> int:
        size: int = self.hf["vocab_size"]
        return size

    @property
    def max_seq_len(self) -> int:
        length: int = self.hf["max_position_embeddings"]
        return length

    @property
    def enable_weight_tying(self) -> bool:
        return bool(self.hf.get("tie_word_embeddings"))

    def build(self) -> Module:
        """The module, on the meta device."""
        return Module(self, self.windows, self.attention)


class SameNames:
    """In the place of TorchTitan's adapter: names and layouts are Hugging Face's."""

    def __init__(self, config: ModuleConfig, hf_assets_path: str | None) -> None:
        pass

    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    def from_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        return state


class ModuleBuilder(Builder):
    """Builds transformers' own module. Transformers has no varlen of torch: its kernel is flex, too."""

    adapter: ClassVar[Any] = SameNames

    def __init__(self, config: Mapping[str, Any], *, attention: str, fuse_qkv: bool) -> None:
        super().__init__(config, attention="sdpa" if attention == "sdpa" else "flex", fuse_qkv=False)

    def decoder(self) -> Any:
        return ModuleConfig(hf=self.hf, windows=self.family.windows(self.hf), attention=self.attention)

    def parallelize(self, module: Any, *, skip_dp: bool, **settings: Any) -> Any:
        """TorchTitan's activation checkpointing and compilation, and FSDP of each layer, in this order."""
        parallel, training = settings["parallel_dims"], settings["training"]
        if settings["ac_config"] is not None:
            settings["ac_config"].build(dump_folder=settings["dump_folder"]).apply(module)
        if settings["compile_config"].enable:
            apply_compile(module, compile_config=settings["compile_config"], parallel_dims=parallel)
        if not skip_dp:
            dtype = getattr(torch, training.mixed_precision_param)
            shard(
                module,
                parallel,
                dtype=dtype,
                head_dtype=dtype,
                cpu_offload=training.enable_cpu_offload,
                reshard_after_forward=settings["parallelism"].fsdp_reshard_after_forward,
            )
        return module
