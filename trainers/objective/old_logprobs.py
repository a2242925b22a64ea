"""OldLogprobs: the trainer's logprobs under the weights at the start of a window of optimizer steps.

A window is the optimizer steps between two updates of the engine's weights, `training.sync_interval` of them: the
mini-batches that GSPO and DAPO make of one batch of rollouts. The ratio that a loss clips is new / old, trainer against
trainer. So it begins at exactly 1 and moves only by what was learned. Trainer and engine differ by rounding on the same
weights; the correction, old / engine, takes this difference. This is the decoupled objective of arXiv 2110.00641 and
2505.24298.

In the window's first step the old logprobs are the present ones, from its own forward pass. For the later steps they
are computed once, before the first step, and kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Literal

import numpy as np

from forge_env.core.episode import Episode, Group
from forge_env.utils.threads import invoke
from trainers.batching.batch import Sample
from trainers.objective.loss_call import Loss, LossCall
from trainers.objective.objective import Objective

Logprobs = Callable[[Sequence[Sample]], Awaitable[Sequence[np.ndarray]]]
"""Makes the logprobs of the samples' sampled targets, in row order; called with the samples of `rows_of`."""
Frozen = list[np.ndarray | None]
"""The old logprobs of a step's samples, in order; None for a sample that the step does not compute."""


def choose_old_logprobs(
    option: Literal["auto", "generator", "trainer"], loss: Loss, *, clips_rounding: bool
) -> Literal["generator", "trainer"]:
    """The model that gives the denominator of the importance ratio: `training.old_logprobs`, with "auto" decided.

    Args:
        clips_rounding: whether rounding alone moves the ratio of trainer to engine out of the loss's clip range.
    """
    if option != "auto":
        return option
    return "trainer" if clips_rounding and "old_logprobs" in LossCall(loss).names else "generator"


def rows_of(episodes: Sequence[Episode]) -> list[Sample]:
    """Episodes as samples without advantages."""
    return [Sample(rows=episode.rows) for episode in episodes]


@dataclass(frozen=True, kw_only=True)
class OldLogprobs:
    """Freezes the old logprobs of a window, and hands them to its steps one by one."""

    objective: Objective
    logprobs: Logprobs
    """The trainer's, under its present weights."""
    _next: deque[Frozen | None] = field(default_factory=deque)
    """One entry for each coming step of the window."""

    async def begin_window(self, batches: Sequence[Sequence[Group]]) -> dict[str, float]:
        """Compute them for all steps but the first; await it before the first.

        Only samples that the step computes are computed here. So they are packed alike in both passes, and rounded
        alike.

        Returns:
            seconds/old_logprobs, if there are later steps.
        """
        start_time = time.perf_counter()
        later = [await self._freeze(groups) for groups in batches[1:]]
        self._next.clear()
        self._next.extend([None, *later])
        return {"seconds/old_logprobs": time.perf_counter() - start_time} if later else {}

    def take(self) -> Frozen | None:
        """The old logprobs of the next step's samples, in order; None in a window's first step, which computes them
        itself."""
        return self._next.popleft()

    async def _freeze(self, groups: Sequence[Group]) -> Frozen:
        objective = self.objective
        asks_models = objective.kl_reference == "model" or objective.distillation is not None
        if LossCall(objective.loss).skips_idle and not asks_models:
            samples = await invoke(objective.samples, groups)
            is_computed = [not sample.is_idle for sample in samples]
        else:  # the advantages do not matter, or need another model's answer first
            episodes = [e for group in groups for e in group.valid if objective.learns_from(e)]
            samples = await invoke(rows_of, episodes)
            is_computed = [True] * len(samples)
        active = list(compress(samples, is_computed))
        values = iter(await self.logprobs(active) if active else ())
        return [next(values) if of_sample else None for of_sample in is_computed]
