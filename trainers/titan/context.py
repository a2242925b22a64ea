"""Context parallelism: the ranks of a group share every sequence, and each computes its own part of the tokens.

A sequence of L tokens is cut into 2 x cp chunks of equal length, and rank r has chunk r and chunk 2 cp - 1 - r. Under a
causal mask a late chunk attends to many keys and an early one to few, so the pair costs the same on every rank. Packed
rows that share a sequence are cut like one long row: the costs of the ranks may then differ, the result does not.

Each layer gathers the keys and values of the full sequence, and computes the queries of its own part (TorchTitan's
scheme for FlexAttention). The gathered keys are in the order of the ranks: `head_tail(L, cp)`, flattened. The output
layer works on the rank's own tokens. The per-token results of all ranks are then combined, so that a loss sees complete
episodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import trainers.titan.device  # noqa: F401  # isort: skip
from torch.nn.attention.flex_attention import BlockMask
from torchtitan.distributed import ParallelDims
from torchtitan.models.common.attention import create_attention_mask

from trainers.batching.batch import MicroBatch


def head_tail(length: int, ranks: int, device: torch.device | None = None) -> Tensor:
    """The positions in a sequence that each rank has, in order: (ranks, length / ranks) int64.

    Args:
        length: of the sequence, a multiple of 2 x ranks.
    """
    chunks = torch.arange(length, device=device).view(2 * ranks, -1)
    return torch.cat([chunks[:ranks], chunks[ranks:].flip(0)], dim=1)


def multiple_of_lengths(ranks: int, *, tensor: int, full_blocks: bool) -> int:
    """The length of every sequence must be a multiple of this number.

    Args:
        ranks: the ranks that share a sequence (context parallelism).
        tensor: tensor-parallel ranks, which split each part of a sequence evenly.
        full_blocks: whether each part must consist of full blocks of 128 tokens, for fast kernels.
    """
    return ranks * math.lcm(2 if ranks > 1 else 1, tensor, 128 if full_blocks else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBatch(MicroBatch):
    """A micro-batch with the `selected` and `targets`, (n,), of one rank's part only.

    A rank without sampled targets has one dummy target, because its output layer must take part in the collectives.
    """

    chosen: Tensor
    """(n,) int64: indices of these targets among all N + M of the micro-batch; (0,) for a dummy target."""


class Context:
    """One of the ranks that share every sequence. With one rank, its methods change nothing."""

    def __init__(self, ranks: int = 1, rank: int = 0, group: dist.ProcessGroup | None = None) -> None:
        self.ranks = ranks
        self.rank = rank
        self._group = group

    @classmethod
    def of(cls, parallel: ParallelDims) -> Context:
        """This process in TorchTitan's meshes."""
        mesh = parallel.get_optional_mesh("cp")
        return cls() if mesh is None else cls(mesh.size(), mesh.get_local_rank(), mesh.get_group())

    def local(self, batch: MicroBatch) -> MicroBatch:
        """This rank's part of a micro-batch. Call it on the CPU: the number of chosen targets depends on the data."""
        if self.ranks == 1:
            return batch
        length = batch.tokens.shape[1]
        mine = torch.zeros(length, dtype=torch.bool)
        mine[head_tail(length, self.ranks)[self.rank]] = True
        indices = mine[batch.selected % length].nonzero()[:, 0]
        selected, targets = batch.selected[indices], batch.targets[indices]
        if not len(indices):
            selected, targets = mine.nonzero()[:1, 0], batch.targets.new_zeros(1, *batch.targets.shape[1:])
        values: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return LocalBatch(**values | {"selected": selected, "targets": targets, "chosen": indices})

    def cut(self, values: Tensor) -> Tensor:
        """This rank's part (B, L / ranks, ...) of (B, L, ...)."""
        return values[:, head_tail(values.shape[1], self.ranks, values.device)[self.rank]]

    def local_places(self, selected: Tensor, length: int) -> Tensor:
        """Places in this rank's part, flattened (B, L / ranks), of the places `selected` in the flattened (B, L)."""
        sequence, place = selected // length, selected % length
        size = length // self.ranks
        order = head_tail(length, self.ranks, selected.device).flatten()
        return sequence * size + order.argsort()[place] - self.rank * size

    def combine(self, values: Tensor, batch: MicroBatch) -> Tensor:
        """Per-token values (N, ...) of the full micro-batch, the same on all ranks, from those of this rank's part.

        Every rank computes the loss of all tokens from them. In the backward pass a rank takes the gradient of its own
        tokens.
        """
        if not isinstance(batch, LocalBatch):
            return values
        result: Tensor = _Combine.apply(values, batch.chosen, len(batch.slots), self._group)
        return result

    def mask(self, positions: Tensor, window: int | None) -> Tensor:
        """Boolean attention mask (B, 1, L / ranks, L) of this rank's queries and the gathered keys.

        Causal, and within the document that starts at each position 0.

        Args:
            positions: (B, L) int64, of the whole sequences.
            window: the most tokens that one attends to, itself among them; None means no bound.
        """
        queries, keys, of_queries, of_keys = self._sides(positions)
        back = queries[:, None] - keys
        return (_within(back, window) & (of_queries[..., None] == of_keys[:, None]))[:, None]

    def block_mask(self, positions: Tensor, window: int | None, block_size: int | tuple[int, int]) -> BlockMask:
        """`mask` for flex attention."""
        queries, keys, of_queries, of_keys = self._sides(positions)

        def attends(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return _within(queries[query] - keys[key], window) & (of_queries[b, query] == of_keys[b, key])

        sizes = len(positions), None, len(queries), len(keys)
        mask: BlockMask = create_attention_mask(attends, *sizes, device=positions.device, BLOCK_SIZE=block_size)
        return mask

    def _sides(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Places of this rank's queries (L / ranks,) and of the gathered keys (L,); and the place of each one's
        document start, (B, L / ranks) and (B, L)."""
        places = head_tail(positions.shape[1], self.ranks, positions.device)
        queries, keys = places[self.rank], places.flatten()
        return queries, keys, queries - positions[:, queries], keys - positions[:, keys]


def _within(back: Tensor, window: int | None) -> Tensor:
    """Whether a token attends to the one that lies `back` places before it."""
    return back >= 0 if window is None else (back >= 0) & (back < window)


class _Combine(torch.autograd.Function):
    """The sum over ranks of values that each rank has for its own tokens, with zeros elsewhere.

    Every rank computes the same loss, and parameter gradients are summed over the ranks. So the gradient of a value
    flows back on one rank only: the rank that computed it.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, indices: Tensor, count: int, group: dist.ProcessGroup | None) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.shape = values.shape
        total = values.new_zeros(count, *values.shape[1:]).index_copy_(0, indices, values[: len(indices)])
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_combined: Tensor) -> tuple[Tensor | None, ...]:
        (indices,) = ctx.saved_tensors
        of_values = of_combined.new_zeros(ctx.shape)
        of_values[: len(indices)] = of_combined[indices]
        return of_values, None, None, None
