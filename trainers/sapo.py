"""SAPO: soft adaptive policy optimisation (arXiv 2511.20347).

    python -m trainers.sapo --env code_exec
    python -m trainers.sapo --env math --sapo.tau_neg 1.2

In place of a clip, beyond which a token teaches nothing, the ratio goes through a smooth gate: a token's gradient fades
with its distance from the policy that sampled it, faster where the advantage is negative.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Literal

from trainers.config import AlgorithmConfig, RunConfig
from trainers.objective.losses import SAPOLoss
from trainers.objective.objective import Objective, loss_options, make_objective


@dataclass(kw_only=True)
class SAPOConfig(AlgorithmConfig):
    tau_pos: float = 1.0
    """Temperature of the gate where the advantage is positive: the larger, the faster the gradient fades."""
    tau_neg: float = 1.05
    """The same where it is not."""
    aggregation: Literal["token", "sequence", "constant"] = "sequence"


@dataclass(kw_only=True)
class Config(RunConfig):
    sapo: SAPOConfig = field(default_factory=SAPOConfig)


def objective(config: Config) -> Objective:
    """J = E[ mean over episodes of the mean over their tokens of (4 / tau) sigmoid(tau (r - 1)) A ]

    with r = p_new(token) / p_engine(token), tau = tau_pos where A > 0 and tau_neg elsewhere, and
    A = (R - mean(R)) / (std(R) + eps) over the group.
    """
    section = config.sapo
    loss = SAPOLoss(tau_pos=section.tau_pos, tau_neg=section.tau_neg, **loss_options(config, section))
    return make_objective("sapo", loss, section)


async def train(config: Config) -> None:
    """Warm up, measure, train, measure again."""
    from trainers.controller.policy_gradient import run_policy_gradient

    await run_policy_gradient("sapo", config, objective(config))


def main() -> int:
    from trainers.setup.entry import main as enter

    return enter(Config, train)


if __name__ == "__main__":
    sys.exit(main())
