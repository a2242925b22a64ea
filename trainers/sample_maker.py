"""SampleMaker: from the groups of a step to its samples, with the logprobs that other models have to compute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from forge_env.episode import Group
from forge_env.errors import first_error
from trainers.batch import Sample
from trainers.loss_call import LossCall
from trainers.objective import Objective

Logprobs = Callable[[Sequence[Sample]], Awaitable[list[list[float]]]]
"""Of samples, the logprobs of their sampled targets, in row order."""


@dataclass(frozen=True, kw_only=True)
class SampleMaker:
    """Turns groups into samples; what is asked of several models is asked of them at the same time."""

    objective: Objective
    reference: Logprobs | None = None
    """The reference model; needed where the objective's `kl_reference` is "model"."""
    old: Logprobs | None = None
    """The trainer itself, before the step; None where the ratio is taken against the generator."""

    async def __call__(self, groups: Sequence[Group]) -> tuple[list[Sample], dict[str, float]]:
        """Return the samples of a step, and metrics.

        Returns:
            The samples; seconds/reference and seconds/old_logprobs, where they were computed, and kl_penalty, the mean
            over episodes of what the KL penalty takes off their reward.
        """
        episodes = [episode for group in groups for episode in group.valid]
        all_rows = [Sample(rows=episode.rows) for episode in episodes]
        # Without a reference model the advantages are known at once, and who has none need not be asked for.
        known = self.objective.samples(groups) if self.reference is None else None
        kept_rows = known or [Sample(rows=episode.rows) for episode in episodes if self.objective.learns_from(episode)]
        needs_old = [known is None or not self._skips_idle or sample.has_advantage for sample in kept_rows]
        asked = [Sample(rows=sample.rows) for sample in compress(kept_rows, needs_old)]
        try:
            async with asyncio.TaskGroup() as tasks:
                reference = tasks.create_task(_timed(self.reference, all_rows))
                old = tasks.create_task(_timed(self.old if asked else None, asked))
        except* Exception as errors:
            raise first_error(errors) from None
        references, reference_seconds = reference.result()
        old_logprobs, old_seconds = old.result()
        samples = self.objective.samples(groups, references) if known is None else known
        metrics: dict[str, float] = {}
        if references is not None:
            metrics["seconds/reference"] = reference_seconds
        if old_logprobs is not None:
            values = iter(old_logprobs)
            samples = [
                replace(sample, old_logprobs=tuple(next(values))) if needs else sample
                for sample, needs in zip(samples, needs_old, strict=True)
            ]
            metrics["seconds/old_logprobs"] = old_seconds
        penalty = self.objective.kl_penalty
        if penalty is not None and references is not None:
            taken = [sum(penalty.by_turn(e, values)) for e, values in zip(episodes, references, strict=True)]
            metrics["kl_penalty"] = sum(taken) / max(len(taken), 1)
        return samples, metrics

    @property
    def _skips_idle(self) -> bool:
        """Whether the trainer computes no sample without an advantage, see `LossCall`."""
        return LossCall(self.objective.loss).skips_idle


async def _timed(logprobs: Logprobs | None, samples: Sequence[Sample]) -> tuple[list[list[float]] | None, float]:
    started = time.perf_counter()
    return (None if logprobs is None else await logprobs(samples)), time.perf_counter() - started
