"""SampleMaker: from the groups of a step to its samples, with the logprobs that other models have to compute."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from forge_env.core.episode import Group
from trainers.batching.batch import Sample
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import Logprobs


@dataclass(frozen=True, kw_only=True)
class SampleMaker:
    """Turns groups into samples."""

    objective: Objective
    reference: Logprobs | None = None
    """The reference model; needed where the objective's `kl_reference` is "model"."""

    async def __call__(
        self, groups: Sequence[Group], old_logprobs: Sequence[Sequence[float] | None] | None = None
    ) -> tuple[list[Sample], dict[str, float]]:
        """Return the samples of a step, and metrics.

        Args:
            groups: of the step.
            old_logprobs: of its samples, in order, where they were computed before; None for a sample that needs none.

        Returns:
            The samples; seconds/reference, where the reference model was asked, and kl_penalty, the mean over episodes
            of what the KL penalty takes off their reward.
        """
        episodes = [episode for group in groups for episode in group.valid]
        metrics: dict[str, float] = {}
        references = None
        if self.reference is not None:
            started = time.perf_counter()
            references = await self.reference([Sample(rows=episode.rows) for episode in episodes])
            metrics["seconds/reference"] = time.perf_counter() - started
        samples = self.objective.samples(groups, references, old_logprobs)
        penalty = self.objective.kl_penalty
        if penalty is not None and references is not None:
            taken = [sum(penalty.by_turn(e, values)) for e, values in zip(episodes, references, strict=True)]
            metrics["kl_penalty"] = sum(taken) / max(len(taken), 1)
        return samples, metrics
