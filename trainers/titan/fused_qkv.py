"""Fused projections in checkpoints: each rank splits its own shard, and nothing is gathered.

TorchTitan saves a fused projection (wqkv) under the names of its queries, keys and values, and gathers it to split it.
Every rank then holds a seventh of the model in float32 as long as the state dict lives. The rows of wqkv are ordered by
key heads, so a shard of complete heads can be split locally.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.common.attention import FusedQKVLinear

NAME = "wqkv."


def split_shards_on_save(module: nn.Module) -> None:
    """Let `module.state_dict()` split the shards of all fused projections, if every shard has complete heads."""
    for part in module.modules():
        if isinstance(part, FusedQKVLinear):
            _register(part)


def _register(part: Any) -> None:
    def split(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        # This runs before TorchTitan's hook of the enclosing module, which then has nothing left to split.
        for parameter in ("weight", "bias"):
            value = state.get(f"{prefix}{parameter}")
            if isinstance(value, DTensor) and _has_whole_heads(part, value):
                del state[f"{prefix}{parameter}"]
                for name, piece in _pieces(part, value).items():
                    state[f"{prefix.removesuffix(NAME)}{name}.{parameter}"] = piece

    part.wqkv.register_state_dict_post_hook(split)


def _has_whole_heads(part: Any, value: DTensor) -> bool:
    """Whether every rank's shard consists of complete key heads, the same number on each rank."""
    heads = value.shape[0] // (part.r_dim * part.head_dim)
    cuts = [
        size
        for size, placement in zip(value.device_mesh.shape, value.placements, strict=True)
        if not placement.is_replicate()
    ]
    return all(placement.is_replicate() or getattr(placement, "dim", None) == 0 for placement in value.placements) and (
        heads % math.prod(cuts) == 0
    )


def _pieces(part: Any, value: DTensor) -> dict[str, Tensor]:
    """This rank's queries, keys and values of a fused parameter, (heads x (queries of a head + 2) x head_dim, ...)."""
    shard = value.to_local()
    groups = shard.view(-1, part.r_dim, part.head_dim, *shard.shape[1:])
    heads = {"wq": slice(0, part.heads_per_kv), "wk": slice(-2, -1), "wv": slice(-1, None)}

    def piece(rows: Tensor) -> Tensor:
        local = rows.reshape(-1, *shard.shape[1:]).contiguous()
        shape = torch.Size((value.shape[0] * local.shape[0] // shard.shape[0], *value.shape[1:]))
        stride = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        on_mesh = DTensor.from_local(
            local, value.device_mesh, value.placements, run_check=False, shape=shape, stride=stride
        )
        return on_mesh.to(
            shard.device
        )  # from_local moves it to the mesh's device, and offloaded weights are on the host

    return {name: piece(groups[:, which]) for name, which in heads.items()}
