"""An output layer that computes in float32, with float32 weights, over a model that computes in bfloat16.

TorchTitan's FSDP gathers all weights in one dtype. Here each part of the model is wrapped with a dtype of its own. If
embedding and output layer share a weight, it is gathered in float32; the embedding's output is then rounded to
bfloat16, which gives the values of a bfloat16 embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# First of all TorchTitan imports: it settles the device for the others.
import trainers.titan.device  # noqa: F401  # isort: skip
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.fsdp import disable_fsdp_gradient_division, get_fsdp_reshard_after_forward_policy
from torchtitan.models.common import Decoder


def head_modules(model: Decoder) -> list[nn.Module]:
    """The modules with the output layer's weight; if the embedding shares it, the embedding is one of them."""
    head = model.get_submodule("lm_head")
    return [model.get_submodule("tok_embeddings"), head] if model.enable_weight_tying else [head]


def round_embedding(model: Decoder, dtype: torch.dtype) -> None:
    """Make a tied embedding return `dtype`, for any dtype of its weight."""

    def round_output(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        return output.to(dtype)

    if model.enable_weight_tying:
        model.get_submodule("tok_embeddings").register_forward_hook(round_output)


def shard(
    model: Any,
    parallel: ParallelDims,
    *,
    dtype: torch.dtype,
    head_dtype: torch.dtype,
    cpu_offload: bool,
    reshard_after_forward: str,
) -> None:
    """Wrap the parts of a model in FSDP as TorchTitan does, except for the dtype of the output layer.

    Args:
        dtype: gathers the weights but the output layer's; gradients are summed in float32.
    """
    names = ["dp_replicate", "fsdp"] if parallel.dp_replicate_enabled else ["fsdp"]
    common: dict[str, Any] = {
        "mesh": parallel.get_mesh(names),
        "offload_policy": CPUOffloadPolicy() if cpu_offload else OffloadPolicy(),
    }
    always = reshard_after_forward == "always"
    policy, head_policy = (
        MixedPrecisionPolicy(param_dtype=param, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for param in (dtype, head_dtype)
    )
    reshard = get_fsdp_reshard_after_forward_policy(reshard_after_forward, pp_enabled=False)
    # The norm and the output layer come last and are needed first by the backward pass: "default" does not free them.
    fully_shard(head_modules(model), mp_policy=head_policy, reshard_after_forward=always, **common)
    fully_shard(model.get_submodule("norm"), mp_policy=policy, reshard_after_forward=always, **common)
    if not model.enable_weight_tying:
        embedding = model.get_submodule("tok_embeddings")
        fully_shard(embedding, mp_policy=policy, reshard_after_forward=reshard, **common)
    for block in model.get_submodule("layers").children():
        fully_shard(block, mp_policy=policy, reshard_after_forward=reshard, **common)
    fully_shard(model, mp_policy=policy, **common)
    disable_fsdp_gradient_division(model)
