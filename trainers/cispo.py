"""CISPO: clipped importance sampling policy optimisation (arXiv 2506.13585).

    python -m trainers.cispo --env code_exec
    python -m trainers.cispo --env math --cispo.clip_high 2

A clipped surrogate gives a token that has moved too far no gradient at all, and rare tokens that open a line of thought
are the first to go. CISPO bounds the weight of a token instead, and every token keeps its gradient. The bounds are
distances from 1, as for the other algorithms: clip_high 4 is a weight of at most 5.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from trainers.config import AlgorithmConfig, RunConfig
from trainers.objective.losses import CISPOLoss
from trainers.objective.objective import Objective, loss_options, make_objective


@dataclass(kw_only=True)
class CISPOConfig(AlgorithmConfig):
    clip_low: float = 1.0
    """1 is no lower bound."""
    clip_high: float = 4.0


@dataclass(kw_only=True)
class Config(RunConfig):
    cispo: CISPOConfig = field(default_factory=CISPOConfig)


def objective(config: Config) -> Objective:
    """J = E[ mean over sampled tokens of sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p_new(token) ]

    with r = p_new(token) / p_engine(token), no gradient through sg(.), and A = (R - mean(R)) / (std(R) + eps) over the
    group.
    """
    section = config.cispo
    loss = CISPOLoss(clip_low=section.clip_low, clip_high=section.clip_high, **loss_options(config, section))
    return make_objective("cispo", loss, section)


async def train(config: Config) -> None:
    """Warm up, measure, train, measure again."""
    from trainers.controller.policy_gradient import run_policy_gradient

    await run_policy_gradient("cispo", config, objective(config))


def main() -> int:
    from trainers.setup.entry import main as enter

    return enter(Config, train)


if __name__ == "__main__":
    sys.exit(main())
