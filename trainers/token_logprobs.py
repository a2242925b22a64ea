"""Logprobs and entropy of a policy at the tokens it sampled, from logits, without a second copy of all logits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from forge_env.errors import UserError


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """Logprob of each target under softmax(logits / temperature).

    Args:
        logits: (N, vocabulary), any float dtype.
        targets: (N,) int64.
        temperature: above 0.

    Returns:
        (N,) float32, with gradient.
    """
    return _TokenLogprobs.apply(logits, targets, temperature)


def token_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy in nats of softmax(logits / temperature), with gradient: (N, vocabulary) to (N,) float32."""
    scaled = logits.float() / temperature
    return scaled.logsumexp(-1) - (scaled.softmax(-1) * scaled).sum(-1)


def check_temperature(temperature: float) -> None:
    """Raise UserError unless logits can be divided by it."""
    if not 0 < temperature < math.inf:
        raise UserError(f"temperature={temperature} must be above 0: greedy answers have no usable logprobs.")


class _TokenLogprobs(torch.autograd.Function):
    """Log-softmax of the target only, in float32 and in slices: never a float32 copy of all logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
        logprobs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        lse = torch.empty_like(logprobs)
        for rows in _slices(logits):
            scaled = logits[rows].float() / temperature
            lse[rows] = scaled.logsumexp(-1)
            logprobs[rows] = scaled.gather(-1, targets[rows, None])[:, 0] - lse[rows]
        ctx.save_for_backward(logits, targets, lse)
        ctx.temperature = temperature
        return logprobs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, lse = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for rows in _slices(logits):
            scaled = logits[rows].float() / ctx.temperature
            weight = upstream[rows, None] / ctx.temperature
            part = (scaled - lse[rows, None]).exp_() * -weight
            gradient[rows] = part.scatter_add_(-1, targets[rows, None], weight)
        return gradient, None, None


def _slices(logits: Tensor, most: int = 1 << 26) -> Iterator[slice]:
    """Cut the rows so that a slice has at most `most` numbers: 256 MiB in float32."""
    rows = max(1, most // logits.shape[-1])
    return (slice(start, start + rows) for start in range(0, len(logits), rows))
