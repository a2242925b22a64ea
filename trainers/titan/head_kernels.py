"""The two passes that a GPU makes over a chunk of logits, each as one kernel.

Memory bounds them: at 32,768 tokens and a vocabulary of 151,936 the logits are 10 GB in bfloat16; `sums` reads them
once, and `gradient_` reads and writes them once. A program of the grid owns a row, so no index is divided and rows may
begin beyond 2^31 elements. `_sums` and `_of_scaled` in head.py have the formulas, and tests compare both.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits of a row that a program has in its registers at once, 16 a thread."""
WARPS = 8


@triton.jit
def _sums_kernel(
    logits,
    stride,
    columns,
    scale,
    of_lse,
    of_entropy,
    WITH_ENTROPY: tl.constexpr,  # in capitals, because the kernel is compiled for each value
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    largest = -1e30  # finite, so that it can be subtracted before the first value
    total = tl.zeros([BLOCK], tl.float32)  # sums of e^(z - largest), by lane
    weighted_sum = tl.zeros([BLOCK], tl.float32)  # sums of e^(z - largest) (z - largest)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        z = tl.load(logits + at, mask=at < columns, other=float("-inf")).to(tl.float32) * scale
        rise = tl.maximum(largest, tl.max(z, 0)) - largest
        shrink = tl.exp(-rise)
        if WITH_ENTROPY:
            weighted_sum = (weighted_sum - total * rise) * shrink
        total *= shrink
        largest += rise
        power = tl.exp(z - largest)
        total += power
        if WITH_ENTROPY:
            weighted_sum += tl.where(power > 0, power * (z - largest), 0.0)
    row_total = tl.sum(total, 0)
    tl.store(of_lse + row, largest + tl.log(row_total))
    if WITH_ENTROPY:
        tl.store(of_entropy + row, tl.log(row_total) - tl.sum(weighted_sum, 0) / row_total)


@triton.jit
def _gradient_kernel(
    logits,
    stride,
    columns,
    scale,
    targets,
    of_lse,
    of_entropy,
    of_w,
    of_u,
    WITH_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row).to(tl.int32)
    lse = tl.load(of_lse + row)
    w = tl.load(of_w + row)
    entropy = 0.0
    u = 0.0
    if WITH_ENTROPY:
        entropy = tl.load(of_entropy + row)
        u = tl.load(of_u + row)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < columns
        logp = tl.load(logits + at, mask=inside, other=float("-inf")).to(tl.float32) * scale - lse
        p = tl.exp(logp)
        gradient = tl.where(at == target, w, 0.0) - w * p
        if WITH_ENTROPY:
            gradient -= u * tl.where(p > 0, p * (logp + entropy), 0.0)
        tl.store(logits + at, gradient.to(logits.dtype.element_ty), mask=inside)


def sums(logits: Tensor, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of each row of logits / temperature, and its entropy (0 if not wanted), both (N,) in float32.

    Args:
        logits: (N, V) with rows of neighbouring elements, in float32 or narrower.
        temperature: above 0.
        with_entropy: also the entropy, at no further pass over the logits.
    """
    lse = logits.new_empty(len(logits), dtype=torch.float32)
    entropy = torch.zeros_like(lse)
    if logits.numel():
        _sums_kernel[(len(logits),)](
            logits, logits.stride(0), logits.shape[1], 1 / temperature, lse, entropy, with_entropy, BLOCK,
            num_warps=WARPS,
        )  # fmt: skip
    return lse, entropy


def gradient_(
    logits: Tensor, targets: Tensor, lse: Tensor, entropy: Tensor, w: Tensor, u: Tensor | None, temperature: float
) -> Tensor:
    """Overwrite logits with the gradient in logits / temperature, w (onehot - p) - u p (log p + entropy); return them.

    Args:
        logits: (N, V) with rows of neighbouring elements.
        targets: (N,) int64, columns of the logits; a target outside has no onehot.
        lse: (N,) float32, over the full vocabulary, as is `entropy`.
        entropy: (N,) float32.
        w: (N,) float32, the gradient of the logprobs.
        u: (N,) float32, the gradient of the entropies, or None.
        temperature: above 0.
    """
    if logits.numel():
        _gradient_kernel[(len(logits),)](
            logits, logits.stride(0), logits.shape[1], 1 / temperature, targets, lse, entropy, w,
            w if u is None else u, u is not None, BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return logits
