"""SampleMaker: from the groups of a step to its samples, with the logprobs that other models have to compute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from forge_env.episode import Group
from forge_env.errors import first_error
from trainers.batch import Sample
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
        kept_rows = [Sample(rows=episode.rows) for episode in episodes if self.objective.learns_from(episode)]
        try:
            async with asyncio.TaskGroup() as tasks:
                reference = tasks.create_task(_timed(self.reference, all_rows))
                old = tasks.create_task(_timed(self.old, kept_rows))
        except* Exception as errors:
            raise first_error(errors) from None
        references, reference_seconds = reference.result()
        old_logprobs, old_seconds = old.result()
        samples = self.objective.samples(groups, references)
        metrics: dict[str, float] = {}
        if references is not None:
            metrics["seconds/reference"] = reference_seconds
        if old_logprobs is not None:
            samples = [replace(s, old_logprobs=tuple(v)) for s, v in zip(samples, old_logprobs, strict=True)]
            metrics["seconds/old_logprobs"] = old_seconds
        penalty = self.objective.kl_penalty
        if penalty is not None and references is not None:
            taken = [sum(penalty.by_turn(e, values)) for e, values in zip(episodes, references, strict=True)]
            metrics["kl_penalty"] = sum(taken) / max(len(taken), 1)
        return samples, metrics


async def _timed(logprobs: Logprobs | None, samples: Sequence[Sample]) -> tuple[list[list[float]] | None, float]:
    started = time.perf_counter()
    return (None if logprobs is None else await logprobs(samples)), time.perf_counter() - started
