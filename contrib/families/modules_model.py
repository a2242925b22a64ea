"""Transformers' own module as the trainer's model, for the families of `modules.py`.

Its weights have Hugging Face's names and layouts. Masks come from `TitanModel`: one for each window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from trainers.titan.experts import STACKS, replay
from trainers.titan.wide_head import shard

_KERNELS = {"sdpa": "sdpa", "flex": "flex_attention"}
"""Our name of an attention kernel -> transformers'."""

_UNUSED = {"attention_dropout": 0.0, "pad_token_id": None}
"""Nothing is dropped, and the embedding's row of the padding token is trained as the others."""


class Module(nn.Module):
    """A model of transformers with the parts, and the arguments, of a TorchTitan decoder.

    Args:
        windows: of each layer; None means no bound.
        attention: "sdpa" or "flex".
    """

    def __init__(self, config: ModuleConfig, windows: Sequence[int | None], attention: str) -> None:
        super().__init__()
        kind: Any = CONFIG_MAPPING[config.hf["model_type"]]
        hf = kind.from_dict(dict(config.hf) | _UNUSED)
        if hasattr(hf, "num_experts_per_tok"):
            hf._experts_implementation = "grouped_mm"  # one kernel for all experts, in the dtype of their weights
        whole: Any = AutoModelForCausalLM.from_config(hf, dtype=torch.float32, attn_implementation=_KERNELS[attention])
        self.model, self.lm_head = whole.model, whole.lm_head
        self.enable_weight_tying = config.enable_weight_tying
        kinds = getattr(hf, "layer_types", None) or ["full_attention"] * len(windows)
        self._windows = dict(zip(kinds, windows, strict=True))
        self._init_part = whole._init_weights
        self._routers: list[Any] = []
        for number, layer in enumerate(self.model.layers):
            if (router := getattr(layer.mlp, "gate", None)) is not None:
                self._routers.append(router)
                router.register_buffer("replay_counts", torch.zeros(2, dtype=torch.int64), persistent=False)
                router.register_forward_hook(_replay)
                layer.register_forward_pre_hook(partial(_give_routes, number), with_kwargs=True)

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

    @property
    def replay_counts(self) -> Tensor:
        """As `trainers.titan.experts.Replayed.replay_counts`."""
        return torch.stack([router.replay_counts for router in self._routers]).sum(0)

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, attention_masks: Any = None, routes: Tensor | None = None
    ) -> Any:
        """Run the model; returns what its output layer returns.

        Args:
            tokens: (B, L) int64.
            positions: (B, L) int64 that restart at 0 with each packed row; None when each sequence is one row.
            attention_masks: the mask of all layers, or a dict of masks by window.
            routes: the experts of each layer, (B, L, layers, K) integers, or None.
        """
        masks = attention_masks
        if isinstance(masks, dict):
            masks = {kind: masks[window] for kind, window in self._windows.items()}
        options = {} if routes is None else {"routes": routes}
        output = self.model(input_ids=tokens, position_ids=positions, attention_mask=masks, use_cache=False, **options)
        return self.lm_head(output.last_hidden_state)


def _give_routes(number: int, layer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Hand a layer's router its experts. A layer that is computed again in the backward pass gets the same ones."""
    routes = kwargs.pop("routes", None)
    layer.mlp.gate.given_ids = None if routes is None else routes[:, :, number].long().flatten(0, 1)
    return args, kwargs


def _replay(router: Any, _: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Score the given experts as a router of transformers scores its own, by the sigmoid of its logits."""
    if router.given_ids is None:
        return None
    logits, _, ids = output
    ids = replay(ids, router.given_ids, router.replay_counts)
    scores = logits.sigmoid().gather(1, ids)
    if router.norm_topk_prob:
        scores = scores / (scores.sum(-1, keepdim=True) + 1e-20)
    return logits, scores * router.routed_scaling_factor, ids


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
    """In the place of TorchTitan's adapter: names and layouts are Hugging Face's, but for stacks of experts."""

    def __init__(self, config: ModuleConfig, hf_assets_path: str | None) -> None:
        pass

    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        pieces: dict[str, Any] = {}
        for name, value in state.items():
            layer, _, stack = name.rpartition(".mlp.experts.")
            matrices = STACKS.get(stack, ()) if layer else ()
            for number, expert in enumerate(value if matrices else ()):
                halves = zip(matrices, expert.chunk(len(matrices)), strict=True)
                pieces |= {f"{layer}.mlp.experts.{number}.{matrix}.weight": half for matrix, half in halves}
        return pieces or state

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
