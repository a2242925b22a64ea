"""The objective of a run, with the user's own loss, advantages and reward: made once for each plan."""

from __future__ import annotations

from forge_env.core.errors import ForgeError, UserError
from trainers.algorithm import Algorithm
from trainers.config import RunConfig
from trainers.objective.loss_call import LossCall
from trainers.objective.objective import Objective
from trainers.objective.plugins import resolve


def plan_objective(config: RunConfig, algorithm: Algorithm) -> Objective | None:
    """The objective that an algorithm makes of a config; None for supervised training.

    Raises:
        UserError: for settings out of range or that contradict each other, a plugin that cannot be used, or an
            algorithm of the user's own that fails.
    """
    if algorithm.objective is None:
        return None
    try:
        objective = algorithm.make_objective(config)
        LossCall(objective.loss)
    except Exception as error:
        if isinstance(error, ForgeError) or not algorithm.target:
            raise
        raise UserError(f"{algorithm.target}: its objective cannot be made: {type(error).__name__}: {error}") from error
    return resolve(objective, config)


def needs_reference(config: RunConfig, objective: Objective | None) -> bool:
    """Whether a run starts a reference model: a trainer of adapters is its own, without them.

    Args:
        config: of the run.
        objective: of the run; None for supervised training.
    """
    return objective is not None and objective.kl_reference == "model" and not config.lora.is_on
