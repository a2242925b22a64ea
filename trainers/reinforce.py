"""REINFORCE, the plain policy gradient, with a baseline from the other episodes of the same task; and RLOO.

    python -m trainers.reinforce --env code_exec
    python -m trainers.reinforce --reinforce.baseline leave_one_out                      # RLOO
    python -m trainers.reinforce --reinforce.baseline none                               # without any baseline

RLOO (arXiv 2402.14740) subtracts the mean of the others, which does not depend on the episode's own reward: it is
n / (n - 1) times the difference from the mean of all.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Literal

from trainers.config import AlgorithmConfig, RunConfig
from trainers.objective.losses import ReinforceLoss
from trainers.objective.objective import Objective, loss_options, make_objective


@dataclass(kw_only=True)
class ReinforceConfig(AlgorithmConfig):
    baseline: Literal["mean", "leave_one_out", "none"] = "mean"
    """What is subtracted from an episode's reward."""
    clip_ratio: float = 0.2
    """How far from 1 a token's importance weight may be; 0 is no weight, which is right on-policy only."""
    normalization: Literal["none", "group", "batch"] = "none"


@dataclass(kw_only=True)
class Config(RunConfig):
    reinforce: ReinforceConfig = field(default_factory=ReinforceConfig)


def objective(config: Config) -> Objective:
    """J = E[ mean over sampled tokens of sg(clip(r, 1 - clip_ratio, 1 + clip_ratio)) (R - b) log p_new(token) ]

    with r = p_new(token) / p_engine(token), no gradient through sg(.), and b the baseline.
    """
    section = config.reinforce
    loss = ReinforceLoss(clip_ratio=section.clip_ratio or None, **loss_options(config, section))
    return make_objective("reinforce", loss, section, baseline=section.baseline)


async def train(config: Config) -> None:
    """Warm up, measure, train, measure again."""
    from trainers.controller.policy_gradient import run_policy_gradient

    await run_policy_gradient("reinforce", config, objective(config))


def main() -> int:
    from trainers.setup.entry import main as enter

    return enter(Config, train)


if __name__ == "__main__":
    sys.exit(main())
