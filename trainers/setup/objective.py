"""The objective of a run, with the user's own loss, advantages and reward: made once for each plan."""

from __future__ import annotations

import sys

from trainers.config import RunConfig
from trainers.objective.objective import Objective
from trainers.objective.plugins import resolve


def plan_objective(config: RunConfig) -> Objective | None:
    """The objective that the algorithm's file makes of its config; None for supervised training.

    Raises:
        UserError: for settings out of range or that contradict each other, or a plugin that cannot be used.
    """
    make = getattr(sys.modules[type(config).__module__], "objective", None)
    return resolve(make(config), config) if make is not None else None


def needs_reference(config: RunConfig, objective: Objective | None) -> bool:
    """Whether a run starts a reference model: a trainer of adapters is its own, without them.

    Args:
        config: of the run.
        objective: of the run; None where it cannot be made. The answer is then what the algorithm's own loss needs.
    """
    if config.lora.rank > 0:
        return False
    if objective is not None:
        return objective.kl_reference == "model"
    section = config.algorithm
    return section is not None and section.beta > 0 and config.services.ref_model.procs > 0
