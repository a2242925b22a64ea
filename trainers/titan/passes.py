"""Forward passes of the trainer's model over micro-batches, on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from forge_env.core.tokens import IDS
from trainers.batching.batch import MicroBatch, Sample, by_sample
from trainers.titan.head import check_temperature
from trainers.titan.model import TitanModel
from trainers.titan.rank_batches import RankBatches


class Passes:
    """Runs a model on the micro-batches of this rank.

    Args:
        fills_routes: give rows without routes some that leave the choice to the router.
    """

    def __init__(self, model: TitanModel, batches: RankBatches, *, fills_routes: bool) -> None:
        self._model, self._batches = model, batches
        self._fills_routes = fills_routes

    def logprobs(self, samples: Sequence[Sample], temperature: float, *, with_routes: bool) -> list[np.ndarray]:
        """Logprobs of the sampled targets: a float32 array per sample, in row order, the same on every rank."""
        (values,) = self.values(samples, self._rounds(samples, temperature, with_routes=with_routes), temperature)
        return by_sample(samples, values)

    def top_logprobs(
        self, samples: Sequence[Sample], temperature: float, count: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids and logprobs of the `count` most likely tokens, see `TitanTrainer.top_logprobs`."""
        total = sum(sample.num_targets for sample in samples)
        values = torch.zeros((total, count), device=self._model.device)
        ids = torch.zeros_like(values, dtype=torch.int64)
        with torch.no_grad():
            for batch in self._rounds(samples, temperature, with_routes=False):
                top = self._model.top_logprobs(batch.tokens, batch.positions, batch.selected, temperature, count)
                if batch.samples:
                    values[batch.target_index], ids[batch.target_index] = top
        arrays = (by_sample(samples, self._batches.sum_over_ranks(each)) for each in (ids, values))
        return [(ids.ravel().astype(IDS), values.ravel()) for ids, values in zip(*arrays, strict=True)]

    def _rounds(self, samples: Sequence[Sample], temperature: float, *, with_routes: bool) -> list[MicroBatch]:
        check_temperature(temperature)
        self._batches.check_rows(samples)
        batches = self._batches.of(samples, with_routes=with_routes)
        return self._batches.rounds(batches, self._batches.count(batches).rounds)

    @torch.no_grad()
    def values(
        self,
        samples: Sequence[Sample],
        batches: Sequence[MicroBatch],
        temperature: float,
        *,
        with_entropy: bool = False,
    ) -> Tensor:
        """(1, M) logprobs, or (2, M) logprobs and entropies, of all sampled targets of the samples.

        A target that is in no rank's batches has 0. Every rank has the same number of batches.
        """
        total = sum(sample.num_targets for sample in samples)
        arrays = torch.zeros((1 + with_entropy, total), device=self._model.device)
        for batch in batches:
            values = self.of_batch(batch, temperature, with_entropy=with_entropy)
            if batch.samples:
                arrays[:, batch.target_index] = torch.stack([value for value in values if value is not None])
        return self._batches.sum_over_ranks(arrays)

    def of_batch(
        self, batch: MicroBatch, temperature: float, *, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Logprobs (N,) of the sampled targets, and entropies (N,) or None."""
        return self.forward(batch, temperature, with_entropy=with_entropy)[:2]

    def forward(
        self, batch: MicroBatch, temperature: float, *, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The values of `of_batch`, and logprobs (N, K) of a teacher's tokens or None."""
        inputs, routes = (batch.tokens, batch.positions, batch.selected, batch.targets), batch.routes
        rows = None if batch.starts is None else (batch.starts, batch.longest)
        if routes is None and self._fills_routes and (experts := self._model.experts):
            shape = *batch.tokens.shape, len(self._model.module.layers), experts.active
            routes = batch.tokens.new_full(shape, -1, dtype=torch.int16)
        logprobs, entropies = self._model.logprobs(
            *inputs, temperature, with_entropy=with_entropy, routes=routes, rows=rows
        )
        combine = self._model.context.combine
        logprobs = combine(logprobs, batch)
        entropies = None if entropies is None else combine(entropies, batch)
        return (logprobs, entropies, None) if logprobs.dim() == 1 else (logprobs[:, 0], entropies, logprobs[:, 1:])
