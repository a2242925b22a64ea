"""Parameters that ranks share: the complete parameter, this rank's part, and its place."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from forge_env.core.errors import InvariantError
from trainers.titan.device import device


@torch.no_grad()
def gather_full(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """A complete parameter on the model's device; a collective if it is sharded. It may be the parameter itself."""
    if isinstance(parameter, DTensor) and parameter.device_mesh.size() == 1:
        parameter = parameter.to_local()  # complete, and each operation of a DTensor takes the host 0.1 ms and more
    # The shard is cast before it is gathered: with float32 weights half the bytes travel.
    value = parameter.detach().to(device=device(), dtype=dtype)
    return value.full_tensor() if isinstance(value, DTensor) else value


def shard_of(name: str, parameter: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """This rank's part of a parameter, to write to, and its place in the complete parameter."""
    if not isinstance(parameter, DTensor):
        return parameter, (slice(None),) * parameter.ndim
    shard = parameter.to_local()
    shape, start = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    if shape != tuple(shard.shape):
        raise InvariantError(f"this rank's part of parameter {name} has shape {tuple(shard.shape)}, not {shape}")
    return shard, tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))


def reshard(module: nn.Module) -> None:
    """Free gathered weights: a forward pass without a backward pass leaves some of them gathered."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
