"""GRPO: group relative policy optimisation (arXiv 2402.03300), with the asymmetric clip of DAPO (arXiv 2503.14476).

    python -m trainers.grpo --env code_exec
    python -m trainers.grpo --env math --steps 60 --seed 1 --output outputs/mine
    python -m trainers.grpo --grpo.aggregation constant --grpo.normalization none        # Dr.GRPO

For each task a group of episodes is sampled. An episode's advantage is its reward, standardised within its group; no
value model is needed. The importance ratio is a real one: the denominator is the logprob that the engine sampled with.

Dr.GRPO (arXiv 2503.20783) removes what GRPO weighs by: the length of an episode and the spread of a group's rewards.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from trainers.config import AlgorithmConfig, RunConfig
from trainers.objective.losses import GRPOLoss
from trainers.objective.objective import Objective, loss_options, make_objective


@dataclass(kw_only=True)
class GRPOConfig(AlgorithmConfig):
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0
    """Bounds the loss of a negative advantage at this times it (arXiv 1912.09729), for example 3; 0 does not."""


@dataclass(kw_only=True)
class Config(RunConfig):
    grpo: GRPOConfig = field(default_factory=GRPOConfig)


def objective(config: Config) -> Objective:
    """J = E[ mean over sampled tokens of min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) ] - beta KL

    with r = p_new(token) / p_engine(token) and A = (R - mean(R)) / (std(R) + eps) over the group.
    """
    section = config.grpo
    loss = GRPOLoss(
        clip_low=section.clip_low,
        clip_high=section.clip_high,
        dual_clip=section.dual_clip or None,
        **loss_options(config, section),
    )
    return make_objective("grpo", loss, section)


async def train(config: Config) -> None:
    """Warm up, measure, train, measure again."""
    from trainers.controller.policy_gradient import run_policy_gradient

    await run_policy_gradient("grpo", config, objective(config))


def main() -> int:
    from trainers.setup.entry import main as enter

    return enter(Config, train)


if __name__ == "__main__":
    sys.exit(main())
