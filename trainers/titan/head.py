"""Logprobs and entropy of a policy at the tokens it sampled, straight from hidden states and the head's weight.

At a vocabulary of 151,936 the logits are by far the largest tensor of a training step: 16,384 tokens make 10 GB in
float32, and a plain log-softmax with its gradient holds several of them. Here the head's matrix product and the softmax
go together through the vocabulary, a chunk of columns at a time. The backward pass computes each chunk of logits again
instead of keeping it. This takes four matrix products instead of three, and memory for a few chunks. If there is memory
for all logits in the dtype of the model, they are one chunk that is kept: three products.

The chunks are columns, not rows, because the gradient of the weight is then written once: each number by one product
over all tokens. Chunks of rows would add to the full gradient again and again, and need it in float32. With tensor
parallelism a rank's shard of the vocabulary is just one more chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from forge_env.core.errors import UserError


def head_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    *,
    with_entropy: bool = False,
    group: dist.ProcessGroup | None = None,
    start: int = 0,
    columns: int | None = None,
    kept_bytes: float = 0,
) -> tuple[Tensor, Tensor | None]:
    """Logprob of each target, and the entropy, under softmax(hidden @ weight.T / temperature).

    Logits are computed in the dtype of `hidden` and `weight`, everything after them in float32 (float64 for float64).
    Differentiable once, in `hidden` and `weight`.

    Args:
        hidden: (N, D).
        weight: (V, D) of the same dtype; with `group`, this rank's rows of the vocabulary.
        targets: (N,) or (N, K) int64. One outside the vocabulary has logprob -inf.
        with_entropy: also return the entropy; costs little forward, and a second chunk of float32 backward.
        group: ranks that share the vocabulary, all with the same `hidden` and `targets`. The results are for the full
            vocabulary; the gradient of `hidden` is this rank's part of a sum over the ranks.
        start: the vocabulary entry of this rank's first row.
        columns: vocabulary entries of a chunk; None fits them to N and V.
        kept_bytes: if all logits fit in this many bytes, they are kept for the backward pass, which overwrites them
            with their gradient.

    Returns:
        Logprobs in the shape of `targets`, and entropies (N,) in nats or None.
    """
    learns = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    keeps = learns and len(hidden) * len(weight) * hidden.element_size() <= kept_bytes
    # On a GPU every chunk costs launches, so all chunks in flight may together be as large as an eighth of float32
    # logits.
    parts, most = (6 * hidden.element_size(), 1 << 28) if hidden.is_cuda else (32, 1 << 26)
    columns = len(weight) if keeps else columns or _columns(len(hidden), len(weight), parts, most=most)
    columns_of_targets = (targets - start).view(len(hidden), math.prod(targets.shape[1:]))  # (N, K), also for N = 0
    logprobs, entropy = _HeadLogprobs.apply(
        hidden, weight, columns_of_targets, temperature, with_entropy, group, columns, keeps
    )
    return logprobs.view(targets.shape), entropy


def check_temperature(temperature: float) -> None:
    """Raise UserError if logits cannot be divided by it."""
    if not 0 < temperature < math.inf:
        raise UserError(f"temperature={temperature} must be above 0: greedy answers have no usable logprobs.")


class _HeadLogprobs(torch.autograd.Function):
    """Saves its inputs and a few numbers per token, and the logits if they are kept; `targets`, (N, K), count from this
    rank's first vocabulary entry.

    Let z = logits / temperature, p = softmax(z), H the entropy, and w and u the gradients of logprob and entropy. The
    gradient of z is then w (onehot - p) - u p (log p + H), with a sum over K in the first term.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        with_entropy: bool,
        group: dist.ProcessGroup | None,
        columns: int,
        keeps: bool,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.kept_logits = None
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        target_logits = hidden.new_full(targets.shape, -math.inf, dtype=dtype)  # z of the targets
        parts = []
        for chunk in _chunks(len(weight), columns):
            logits = F.linear(hidden, weight[chunk])
            column, inside = _within(targets, chunk)
            target_logits = torch.where(inside, logits.gather(-1, column).to(dtype) / temperature, target_logits)
            if _has_kernels(logits):
                parts.append(_kernels().sums(logits, temperature, with_entropy))
            else:
                parts.append(_sums(logits.clone() if keeps else logits, temperature, dtype, with_entropy))
            if keeps:
                ctx.kept_logits = logits
            del logits  # before the next chunk is made
        lse, entropy = _combine(*map(torch.stack, zip(*parts, strict=True)))
        if group is not None:
            target_logits, lse, entropy = _over_ranks(target_logits, lse, entropy, group)
        logprobs = target_logits - lse[:, None]
        ctx.save_for_backward(hidden, weight, targets, lse, entropy)
        ctx.temperature, ctx.columns = temperature, columns
        ctx.set_materialize_grads(False)  # if the loss did not use the entropy, its gradient is None and costs nothing
        return logprobs, entropy if with_entropy else None

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, lse, entropy = ctx.saved_tensors
        kept_logits, ctx.kept_logits = (
            ctx.kept_logits,
            None,
        )  # overwritten below; a second backward pass would compute them again
        w = torch.zeros_like(targets, dtype=lse.dtype) if of_logprobs is None else of_logprobs / ctx.temperature
        u = None if of_entropy is None else of_entropy / ctx.temperature
        of_hidden = torch.zeros_like(hidden, dtype=lse.dtype) if ctx.needs_input_grad[0] else None
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        for chunk in _chunks(len(weight), ctx.columns):
            logits = F.linear(hidden, weight[chunk]) if kept_logits is None else kept_logits
            kept_logits = None
            if not _has_kernels(logits):
                gradient = _of_scaled(logits, *_within(targets, chunk), lse, entropy, w, u, ctx.temperature)
            elif w.shape[1] == 1:
                place = targets[:, 0] - chunk.start
                gradient = _kernels().gradient_(logits, place, lse, entropy, w[:, 0], u, ctx.temperature)
            else:  # the kernel's only onehot is outside, and those of the K targets are added
                nowhere, total = torch.full_like(targets[:, 0], -1), w.sum(-1)
                gradient = _kernels().gradient_(logits, nowhere, lse, entropy, total, u, ctx.temperature)
                _add_onehots(gradient, *_within(targets, chunk), w)
            del logits  # each of these is a chunk: none may live on into the next round
            gradient = gradient.to(hidden.dtype)
            if of_weight is not None:
                torch.mm(gradient.T, hidden, out=of_weight[chunk])
            if of_hidden is not None:
                if of_hidden.dtype == gradient.dtype:
                    of_hidden.addmm_(gradient, weight[chunk])
                else:
                    of_hidden += gradient @ weight[chunk]
            del gradient
        return (None if of_hidden is None else of_hidden.to(hidden.dtype)), of_weight, *(None,) * 6


def _of_scaled(
    logits: Tensor,
    column: Tensor,
    inside: Tensor,
    lse: Tensor,
    entropy: Tensor,
    w: Tensor,
    u: Tensor | None,
    temperature: float,
) -> Tensor:
    """Gradient of one chunk of z, in the dtype of `lse`. May overwrite the logits."""
    logp = _scale(logits, lse, temperature, lse.dtype)
    if u is None:
        gradient = logp.exp_().mul_(-w.sum(-1, keepdim=True))
    else:
        p = logp.exp()
        gradient = torch.addcmul(-(w.sum(-1) + u * entropy)[:, None], -u[:, None], logp, out=logp).mul_(p)
    return _add_onehots(gradient, column, inside, w)


def _add_onehots(gradient: Tensor, column: Tensor, inside: Tensor, w: Tensor) -> Tensor:
    """Add the gradient of each target's own z, in place."""
    return gradient.scatter_add_(-1, column, torch.where(inside, w, 0.0).to(gradient.dtype))


def _scale(logits: Tensor, offset: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """logits / temperature - offset in `dtype`, in one pass, in place where the dtype allows."""
    out = logits if logits.dtype == dtype else torch.empty_like(logits, dtype=dtype)
    return torch.add(-offset[:, None], logits, alpha=1 / temperature, out=out)


def _sums(logits: Tensor, temperature: float, dtype: torch.dtype, with_entropy: bool) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of one chunk, and its entropy (0 if not wanted), both (N,). Overwrites the logits."""
    largest = logits.amax(-1).to(dtype) / temperature
    powers = _scale(logits, largest, temperature, dtype).exp_()
    total = powers.sum(-1)
    if not with_entropy:
        return largest + total.log(), torch.zeros_like(total)
    # -p log p of unnormalised p, in place; the mean of the logits would need a second chunk.
    return largest + total.log(), torch.special.entr(powers, out=powers).sum(-1) / total + total.log()


# On a GPU the passes over a chunk cost more than its matrix products, so each of the two passes is one kernel there.
# The formulas above run on a CPU, pass by pass and in place; the kernels are tested against them.


def _has_kernels(logits: Tensor) -> bool:
    return logits.is_cuda and logits.dtype != torch.float64


def _kernels() -> ModuleType:
    """The kernels, imported on a GPU only: Triton comes with the torch of a GPU."""
    from trainers.titan import head_kernels

    return head_kernels


def _combine(lse: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and entropy over all parts, from the values of each part, both (parts, N)."""
    share = lse.softmax(0)  # the probability of each part
    return lse.logsumexp(0), (share * entropy).sum(0) + torch.special.entr(share).sum(0)


def _over_ranks(
    target_logits: Tensor, lse: Tensor, entropy: Tensor, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    of_rank = torch.cat([target_logits, lse[:, None], entropy[:, None]], dim=1)
    parts = [torch.empty_like(of_rank) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, of_rank, group=group)
    of_ranks = torch.stack(parts)  # (ranks, N, K + 2)
    # A target is -inf on all ranks but one.
    return of_ranks[..., :-2].amax(0), *_combine(of_ranks[..., -2], of_ranks[..., -1])


def _within(targets: Tensor, chunk: slice) -> tuple[Tensor, Tensor]:
    """Column of each target in a chunk (N, K), clamped into the chunk, and whether it lies in the chunk (N, K)."""
    inside = (targets >= chunk.start) & (targets < chunk.stop)
    return (targets - chunk.start).clamp(0, chunk.stop - chunk.start - 1), inside


def _chunks(vocabulary: int, columns: int) -> Iterator[slice]:
    return (slice(first, min(first + columns, vocabulary)) for first in range(0, vocabulary, columns))


def _columns(tokens: int, vocabulary: int, parts: int, *, most: int = 1 << 26) -> int:
    """Columns of a chunk: a share of the vocabulary and 256 MiB in float32 at most, but enough for a fast product."""
    columns = min(vocabulary / parts, most / max(tokens, 1))
    return max(1024, math.ceil(columns / 128) * 128)  # whole tiles of a matrix product on a GPU
