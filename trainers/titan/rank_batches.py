"""A rank's share of the samples of a step, and sums over the ranks that share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from forge_env.core.errors import InvariantError, UserError
from trainers.batching.batch import MicroBatch, Sample, pack
from trainers.batching.empty import empty_batch
from trainers.batching.packing import flops_crossover
from trainers.batching.routes import highest_expert, routes_shape
from trainers.titan.model import TitanModel
from trainers.titan.settings import TitanSettings

if TYPE_CHECKING:
    from torchtitan.distributed import ParallelDims

    from forge_env.core.episode import Row


class Counts(NamedTuple):
    """Sizes of a step's micro-batches that every rank knows."""

    tokens: int  # valid ones, over all ranks
    episodes: int  # with valid tokens, over all ranks
    rounds: int  # the largest number of micro-batches of a rank
    rounds_of_parts: int  # the largest number of them with rows of split episodes
    rows_read: tuple[int, int]  # as `MicroBatch.rows_read`, over all ranks


class StepWork(NamedTuple):
    """What a rank computes in a step."""

    samples: Sequence[Sample]
    batches: list[MicroBatch]
    """This rank's share of them, on the CPU."""
    counts: Counts
    tokens: int
    """Valid tokens of all samples, computed or not."""
    episodes: int
    """Episodes with valid tokens, computed or not."""


class RankBatches:
    """Makes the micro-batches of one rank from the samples of a step. Every rank is given all samples.

    Args:
        multiple: the length of a micro-batch is a multiple of this number of tokens.
    """

    def __init__(
        self, model: TitanModel, parallel: ParallelDims, settings: TitanSettings, *, multiple: int, replays: bool
    ) -> None:
        self._model = model
        self._settings = settings
        self._multiple = multiple
        self._replays = replays
        self.ranks = parallel.dp_replicate * parallel.dp_shard
        """Ranks that share the samples of a step."""
        mesh = parallel.get_optional_mesh("batch")
        self._group = mesh.get_group() if mesh is not None else None
        self._rank = mesh.get_local_rank() if mesh is not None else 0

    def check_rows(self, samples: Sequence[Sample]) -> None:
        """Check that the model can read every row."""
        rows = [row.token_ids for sample in samples for row in sample.rows]
        longest = max(map(len, rows), default=0)
        if longest > self._model.max_length:
            raise UserError(
                f"a row has {longest} tokens, more than the model's max_position_embeddings={self._model.max_length}."
            )
        highest = max((int(token_ids.max()) for token_ids in rows if len(token_ids)), default=0)
        vocabulary = self._model.config.vocab_size
        if highest >= vocabulary:
            raise InvariantError(f"a row holds token {highest}, but the model's vocabulary has {vocabulary} entries")
        if self._replays:
            self._check_routes([row for sample in samples for row in sample.rows])

    def _check_routes(self, rows: Sequence[Row]) -> None:
        shape, experts = routes_shape(rows), self._model.experts
        if shape is None or experts is None:
            return
        layers, highest = len(self._model.module.layers), highest_expert(rows)
        if shape != (layers, experts.active) or highest >= experts.count:
            raise InvariantError(
                f"routes name experts up to {highest}, {shape[1]} in each of {shape[0]} layers, but the model has "
                f"{experts.count} in each of {layers} layers, and {experts.active} of them compute a token"
            )

    def work(self, samples: Sequence[Sample], *, skips_idle: bool) -> StepWork:
        """Divide a step among the ranks.

        Args:
            samples: of the step; every rank is given all of them, so that what is left out needs no collective.
        """
        idle, active = list[Sample](), list[Sample]()
        for sample in samples:
            (idle if skips_idle and sample.is_idle else active).append(sample)
        batches = self.of(active)
        counts = self.count(batches)
        tokens, episodes = (sum(units) for units in zip((0, 0), *(sample.units for sample in idle), strict=True))
        return StepWork(active, batches, counts, tokens + counts.tokens, episodes + counts.episodes)

    def of(self, samples: Sequence[Sample], *, with_routes: bool | None = None) -> list[MicroBatch]:
        """This rank's share of the samples, on the CPU, with the caller's numbers of `samples`."""
        return pack(
            samples,
            max_tokens=self._settings.max_tokens_per_micro_batch,
            pack_length=self._settings.pack_length,
            pad_id=0,
            multiple=self._multiple,
            rank=self._rank,
            ranks=self.ranks,
            crossover=flops_crossover(self._model.shape),
            with_routes=self._replays if with_routes is None else with_routes,
        )

    def count(self, batches: Sequence[MicroBatch]) -> Counts:
        sums = [sum(counts) for counts in zip((0,) * 4, *((*b.units, *b.rows_read) for b in batches), strict=True)]
        most = [len(batches), sum(batch.is_part for batch in batches)]
        if self._group is not None:
            sums = self.sum_over_ranks(torch.tensor(sums, device=self._model.device)).tolist()
            most = self.max_over_ranks(torch.tensor(most, device=self._model.device)).tolist()
        tokens, episodes, read, holes = sums
        rounds, rounds_of_parts = most
        return Counts(tokens, episodes, rounds, rounds_of_parts, (read, holes))

    def rounds(self, batches: Sequence[MicroBatch], rounds: int) -> list[MicroBatch]:
        """`rounds` batches on the device, with empty ones at the end.

        All go there before the first pass: a later copy would wait for the passes that are queued until then.
        """
        return self.pad([self.place(batch) for batch in batches[:rounds]], rounds)

    def pad(self, batches: Sequence[MicroBatch], rounds: int) -> list[MicroBatch]:
        """Add empty batches: every rank has to run the model equally often, or collectives never meet."""
        return [*batches, *[self.place(empty_batch(self._multiple))] * (rounds - len(batches))]

    def place(self, batch: MicroBatch) -> MicroBatch:
        """The rank's part of a micro-batch, on the device."""
        return self._model.context.local(batch).to(self._model.device)

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        if self._group is not None:
            dist.all_reduce(values, group=self._group)
        return values

    def max_over_ranks(self, values: Tensor) -> Tensor:
        if self._group is not None:
            dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._group)
        return values
