"""The learning rate over the steps of a phase: a linear warm-up, then constant or down to 0."""

from __future__ import annotations

import sys
from collections.abc import Callable

# First of all TorchTitan imports: it settles the device for the others.
import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer


def build_schedule(
    optimizers: OptimizersContainer, kind: str, *, warmup_steps: int, total_steps: int
) -> LRSchedulersContainer:
    """TorchTitan's schedule for a phase of `total_steps`, which "constant" does not need.

    With W steps of warm-up and N in all, step s (from 0) has (s + 1) / W of the learning rate during the warm-up. From
    then on, with x = (s - W) / (N - W), it has 1 - x ("linear") or (1 + cos(pi x)) / 2 ("cosine"). So the step after
    the last one, and every further one, would have 0.
    """
    decays = kind != "constant"
    config = LRSchedulersContainer.Config(
        warmup_steps=warmup_steps, decay_ratio=None if decays else 0.0, decay_type=kind if decays else "linear"
    )
    schedule = config.build(optimizers=optimizers, training_steps=total_steps if decays else sys.maxsize)
    if decays:  # beyond the end TorchTitan's formulas go on: a linear rate below 0, a cosine up again
        for scheduler in schedule:
            scheduler.lr_lambdas = [_hold(share, total_steps) for share in scheduler.lr_lambdas]
    return schedule


def _hold(share: Callable[[int], float], last: int) -> Callable[[int], float]:
    return lambda step: share(min(step, last))
