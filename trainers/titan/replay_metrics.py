"""The metrics of routing replay in one optimizer step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.batching.batch import MicroBatch
from trainers.objective.loss_metrics import LossMetrics
from trainers.titan.model import TitanModel


class Logprobs(Protocol):
    """Computes the logprobs (N,) of a micro-batch, and its entropies or None."""

    def __call__(self, batch: MicroBatch) -> tuple[Tensor, Tensor | None]: ...


class ReplayMetrics:
    """Collects the metrics of one optimizer step over its micro-batches. Without routes it does nothing.

    Args:
        rows_read: over all ranks, the tokens of the step without padding, and the number of them without routes; (0, 0)
            if no row of the step has routes.
    """

    def __init__(self, model: TitanModel, rows_read: tuple[int, int]) -> None:
        self._model = model
        self._rows_read = rows_read
        self.is_on = rows_read[0] > 0
        """Whether any row of the step, on any rank, has routes."""
        self._counts = torch.zeros(2, dtype=torch.int64, device=model.device)
        self._without: LossMetrics | None = None

    def add(self, batch: MicroBatch) -> None:
        """Take in the micro-batch of the model's last forward pass."""
        if batch.routes is not None:
            self._counts += self._model.replay_counts

    @torch.no_grad()
    def compare(self, batches: Sequence[MicroBatch], logprobs: Logprobs) -> None:
        """Compute all micro-batches of the step without routes, and keep their distance from the engine.

        Every rank calls it, with the same number of micro-batches.
        """
        self._without = LossMetrics(None, self._model.device)
        for batch in batches:
            values, _ = logprobs(dataclasses.replace(batch, routes=None))
            self._without.add(batch, batch.scatter(values), None)

    def sum_over_ranks(self, over_data_ranks: Callable[[Tensor], Tensor]) -> None:
        """Sum the values over the ranks; every rank calls it.

        Args:
            over_data_ranks: sums a tensor, in place, over the ranks that share the samples.
        """
        if not self.is_on:
            return
        if self._model.parallel.world_size > 1:
            # Ranks that share a sequence have either parts of its tokens or all of them: the shares are the same.
            dist.all_reduce(self._counts)
        if self._without is not None:
            over_data_ranks(self._without.sums)

    def values(self, tokens: int) -> dict[str, float]:
        """The metrics of the step; empty if no row has routes.

        Args:
            tokens: valid tokens that were computed, over all ranks.

        Returns:
            replay/experts_differ: of the pairs of a token and a layer with routes, the share for which the router would
            have chosen other experts.
            replay/holes: the share of the tokens without routes, for which the router chose.
            replay/difference_without and replay/kl_without, after `compare`: mean_abs_logprob_difference and kl of the
            step without routes.
        """
        if not self.is_on:
            return {}
        routed_tokens, differing = self._counts.tolist()
        read, holes = self._rows_read
        values = {"replay/experts_differ": differing / max(routed_tokens, 1), "replay/holes": holes / read}
        without = self._without.values(tokens) if self._without is not None else {}
        names = {"mean_abs_logprob_difference": "difference", "kl": "kl"}
        return values | {f"replay/{names[name]}_without": without[name] for name in names if name in without}
