"""The gated delta rule (arXiv 2412.06464): by fla on a GPU, as one operation of torch, and in torch on a CPU.

Torch cannot trace fla's kernels. A block that left its graph for them would run uncompiled under activation
checkpointing: torch compiles nothing inside a checkpoint that it cannot compile whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainers.titan.attention import SAVED_OPS

_CHUNK = 64  # tokens, as in fla and transformers


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The rows of a forward pass over (B, L) tokens, which are one sequence of T = B x L tokens to the rule."""

    borders: Tensor
    """(rows + 1,) int64: the first token of each row, in order, and T."""
    place: Tensor
    """(T,) int64: of each token in its row; a row's first token has 0."""
    chunks: Tensor
    """(chunks, 2) int64: the row of each chunk of 64 tokens, and the chunk's number in it."""

    @classmethod
    def of(cls, tokens: Tensor, positions: Tensor | None) -> PackedRows:
        """Find the rows.

        Args:
            tokens: (B, L).
            positions: (B, L), 0 at the start of each row; None when each sequence is one row.
        """
        is_first = torch.zeros_like(tokens, dtype=torch.bool) if positions is None else positions == 0
        is_first = is_first.index_fill(1, is_first.new_zeros(1, dtype=torch.int64), True).flatten()
        row, starts = is_first.cumsum(0) - 1, is_first.nonzero()[:, 0]
        place = torch.arange(len(row), device=row.device) - starts[row]
        heads = (place % _CHUNK == 0).nonzero()[:, 0]
        rows = cls(F.pad(starts, (0, 1), value=len(row)), place, torch.stack([row[heads], place[heads] // _CHUNK], 1))
        for part in (rows.borders, rows.chunks):  # else compiled again for each number of rows
            torch._dynamo.maybe_mark_dynamic(part, 0)
        return rows


def delta_rule(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor, rows: PackedRows) -> Tensor:
    """What the memory gives to each token; it is empty at the start of each row.

    Args:
        query, key: (T, key heads, key size).
        value: (T, value heads, value size).
        decay: (T, value heads) float32, at most 0: logarithm of the share that stays of the memory.
        rate: (T, value heads), 0 to 1: how much of the new value is written.
        rows: of the T tokens.

    Returns:
        (T, value heads, value size) in the dtype of the values.
    """
    if value.is_cuda:
        output: Tensor = fla_rule(query, key, value, decay, rate, rows.borders, rows.chunks)
        return output
    groups = value.shape[1] // key.shape[1]
    query, key = (_unit(part).repeat_interleave(groups, dim=1) for part in (query, key))
    parts = (query * query.shape[-1] ** -0.5, key, value.float(), decay, rate.float())
    lengths = rows.borders.diff().tolist()
    if len(set(lengths)) == 1:
        out = _by_chunks(*(part.unflatten(0, (len(lengths), -1)) for part in parts)).flatten(0, 1)
    else:
        split = zip(*(part.split(lengths) for part in parts), strict=True)
        out = torch.cat([_by_chunks(*(part[None] for part in row))[0] for row in split])
    return out.to(value.dtype)


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1, in float32; 1e-6 as in fla and transformers."""
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _by_chunks(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor) -> Tensor:
    """The rule for R rows of equal length L, by chunks (arXiv 2412.06464, section 3.3): (R, L, heads, value size)."""
    length = query.shape[1]

    def by_chunk(x: Tensor) -> Tensor:
        """(R, heads, chunks, tokens of a chunk, ...)"""
        whole_chunks = F.pad(x, (0, 0) * (x.ndim - 2) + (0, -length % _CHUNK))
        return whole_chunks.unflatten(1, (-1, _CHUNK)).movedim(3, 1)

    query, key, value, decay, rate = map(by_chunk, (query, key, value, decay, rate))
    since = decay.cumsum(-1)  # of the chunk's start
    later = torch.ones(_CHUNK, _CHUNK, dtype=torch.bool, device=query.device).triu(1)
    between = (since[..., :, None] - since[..., None, :]).masked_fill(later, -torch.inf).exp()
    writes = key * rate[..., None]
    # Each token of a chunk writes what the tokens before it in the chunk have not written: a triangular system.
    system = (writes @ key.mT) * between
    sides = torch.cat([value * rate[..., None], writes * since.exp()[..., None]], dim=-1)
    solution = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    new, read = solution.split([value.shape[-1], key.shape[-1]], dim=-1)
    within, from_start = (query @ key.mT) * between, query * since.exp()[..., None]
    to_end, whole = key * (since[..., -1:] - since).exp()[..., None], since[..., -1].exp()[..., None, None]
    memory = value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1])
    outputs = []
    for chunk in range(value.shape[2]):
        change = new[:, :, chunk] - read[:, :, chunk] @ memory
        outputs.append(from_start[:, :, chunk] @ memory + within[:, :, chunk] @ change)
        memory = memory * whole[:, :, chunk] + to_end[:, :, chunk].mT @ change
    return torch.cat(outputs, dim=2).transpose(1, 2)[:, :length]


@torch.library.custom_op("forge_env::delta_rule", mutates_args=(), device_types="cuda")
def fla_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor, borders: Tensor, chunks: Tensor
) -> Tensor:
    """The rule on a GPU; `delta_rule` has the arguments."""
    return _fla_of_batch([part[None] for part in (query, key, value, decay, rate)], borders, chunks)[0]


@torch.library.custom_op("forge_env::delta_rule_backward", mutates_args=(), device_types="cuda")
def _fla_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    rate: Tensor,
    borders: Tensor,
    chunks: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the first five arguments. What fla keeps of the forward pass is computed again."""
    with torch.enable_grad():
        inputs = [part.detach()[None].requires_grad_() for part in (query, key, value, decay, rate)]
        grads = torch.autograd.grad(_fla_of_batch(inputs, borders, chunks), inputs, gradient[None])
    q, k, v, d, r = (part[0] for part in grads)
    return q, k, v, d, r


def _fla_of_batch(parts: list[Tensor], borders: Tensor, chunks: Tensor) -> Tensor:
    """The rule of one sequence (1, T, ...)."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    rows = {"cu_seqlens": borders, "chunk_indices": chunks}
    output: Tensor = chunk_gated_delta_rule(*parts, use_qk_l2norm_in_kernel=True, **rows)[0]
    return output


@fla_rule.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
    return value.new_empty(value.shape)


@_fla_backward.register_fake
def _(gradient: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(part.new_empty(part.shape) for part in inputs[:5])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return (*_fla_backward(gradient, *ctx.saved_tensors), None, None)


fla_rule.register_autograd(_differentiate, setup_context=_keep)
SAVED_OPS.add(fla_rule._opoverload)
