"""Weights that two processes can make from a seed, and compare by their fingerprints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from forge_env.runtime.weights import WeightStream


def make_state_dict(seed: int) -> dict[str, Any]:
    """Tensors of many dtypes and shapes, with the names of a real model and the values that are easily lost."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    def whole(low: int, high: int, *shape: int) -> Any:
        return torch.randint(low, high, shape, generator=generator)

    return {
        "model.embed_tokens.weight": normal(330, 16),
        "model.layers.0.self_attn.q_proj.weight": normal(16, 16).to(torch.bfloat16),
        "model.layers.0.input_layernorm.weight": normal(16).half(),
        "model.layers.10.mlp.weight": normal(4, 3, 2).double(),
        "model.layers.1.mlp.weight": normal(6, 4).t(),  # not contiguous
        "lm_head.weight": normal(16, 330)[:, ::2],
        "special": torch.tensor([float("inf"), -float("inf"), -0.0, float("nan"), 1e-45]),
        "scalar": normal(),
        "empty": torch.empty(0, 5),
        "steps": whole(-(2**40), 2**40, 7),
        "bytes": whole(0, 256, 5).to(torch.uint8),
        "signed": whole(-128, 128, 2, 2).to(torch.int8),
        "mask": whole(0, 2, 3, 3).bool(),
    }


def fingerprints(state_dict: dict[str, Any]) -> dict[str, str]:
    """Shape, dtype and a digest of the bytes of every tensor."""

    def fingerprint(tensor: Any) -> str:
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{tuple(tensor.shape)} {tensor.dtype} {hashlib.sha256(raw).hexdigest()}"

    return {name: fingerprint(tensor) for name, tensor in state_dict.items()}


def failing_half_way(state_dict: dict[str, Any]) -> WeightStream:
    """A stream that ends with a ZeroDivisionError."""
    weights = WeightStream.of(state_dict)

    def half() -> Iterator[tuple[str, Any]]:
        for number, tensor in enumerate(weights.tensors):
            if number == 5:
                raise ZeroDivisionError
            yield tensor

    return replace(weights, tensors=half())
