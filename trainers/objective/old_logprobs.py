"""OldLogprobs: the trainer's own logprobs of the weights that a window of optimizer steps begins with.

A window is the optimizer steps between two updates of the engine's weights, `training.sync_interval` of them: the
mini-batches that GSPO and DAPO take of one batch of rollouts. The ratio that a loss clips is new / old, trainer against
trainer, so that it begins at exactly 1 and moves by what was learned; how far trainer and engine differ on one and the
same weights, by rounding alone, is left to the correction, old / engine. This is the decoupled objective of arXiv
2110.00641 and 2505.24298.

For the window's first step the old logprobs are the present ones: its own forward pass has them. For the later steps
they are computed once, before the first step, and kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Literal

from forge_env.core.episode import Episode, Group
from forge_env.utils.threads import invoke
from trainers.batching.batch import Numbers, Sample
from trainers.config import RunConfig
from trainers.objective.loss_call import Loss, LossCall
from trainers.objective.objective import Objective

Logprobs = Callable[[Sequence[Sample]], Awaitable[Sequence[Numbers]]]
"""Of samples, the logprobs of their sampled targets, in row order; they are called with what `rows_of` makes."""
Frozen = list[Numbers | None]
"""The old logprobs of a step's samples, in order; None for a sample that the step does not compute."""


def whose_old_logprobs(config: RunConfig, loss: Loss) -> Literal["generator", "trainer"]:
    """Whose logprobs the importance ratio of a run begins from: `training.old_logprobs`, with "auto" decided."""
    chosen, section = config.training.old_logprobs, config.algorithm
    if chosen != "auto":
        return chosen
    if section is None or not section.clips_within_rounding or config.precision == "float32":
        return "generator"
    return "trainer" if "old_logprobs" in LossCall(loss).names else "generator"


def rows_of(episodes: Sequence[Episode]) -> list[Sample]:
    """Episodes as samples without advantages."""
    return [Sample(rows=episode.rows) for episode in episodes]


@dataclass(frozen=True, kw_only=True)
class OldLogprobs:
    """Freezes the old logprobs of a window, and hands them to its steps, one after the other."""

    objective: Objective
    logprobs: Logprobs
    """The trainer's, under its present weights."""
    _next: deque[Frozen | None] = field(default_factory=deque)
    """Of each step of the window that is still to come."""

    async def begin_window(self, batches: Sequence[Sequence[Group]]) -> dict[str, float]:
        """Compute them for all steps but the first; to be awaited before the first.

        Each step's are computed for the samples alone that it computes: they are then packed alike in both passes, and
        rounded alike.

        Args:
            batches: the groups of each step of the window.

        Returns:
            seconds/old_logprobs, where there are later steps.
        """
        started = time.perf_counter()
        later = [await self._freeze(groups) for groups in batches[1:]]
        self._next.clear()
        self._next.extend([None, *later])
        return {"seconds/old_logprobs": time.perf_counter() - started} if later else {}

    def take(self) -> Frozen | None:
        """Those of the samples of the next step, in order; None for a window's first step, which has them itself."""
        return self._next.popleft()

    async def _freeze(self, groups: Sequence[Group]) -> Frozen:
        objective = self.objective
        if LossCall(objective.loss).skips_idle and objective.kl_reference != "model":
            samples = await invoke(objective.samples, groups)
            is_computed = [sample.has_advantage for sample in samples]
        else:  # the advantages are not known before the reference model has been asked, or do not decide it
            learned = [e for group in groups for e in group.valid if objective.learns_from(e)]
            samples = await invoke(rows_of, learned)
            is_computed = [True] * len(samples)
        computed = list(compress(samples, is_computed))
        values = iter(await self.logprobs(computed) if computed else ())
        return [next(values) if of_sample else None for of_sample in is_computed]
