"""The objective of a run, with the user's own loss, advantages and reward: made once for each plan."""

from __future__ import annotations

import sys

from forge_env.core.errors import UserError
from trainers.config import RunConfig
from trainers.objective.objective import Objective
from trainers.objective.plugins import resolve


def plan_objective(config: RunConfig) -> Objective | None:
    """The objective that the algorithm's file makes of its config; None for supervised training.

    The file is that of the config's class, or of the nearest parent of the class that has a function `objective`.

    Raises:
        UserError: for settings out of range or that contradict each other, a plugin that cannot be used, or an
            algorithm without an objective.
    """
    if not config.algorithm_name:
        return None
    modules = [sys.modules.get(parent.__module__) for parent in type(config).__mro__]
    make = next((made for module in modules if callable(made := getattr(module, "objective", None))), None)
    if make is None:
        raise UserError(
            f"the algorithm {config.algorithm_name} has no objective: write objective(config) in "
            f"{type(config).__module__}, the module of its config, as trainers.grpo does"
        )
    return resolve(make(config), config)


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
