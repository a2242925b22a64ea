"""GRPO: group relative policy optimisation (arXiv 2402.03300), with the asymmetric clip of DAPO (arXiv 2503.14476).

    python -m trainers.grpo --env code_exec
    python -m trainers.grpo --env math --steps 60 --seed 1 --output outputs/mine

For each task a group of episodes is sampled. An episode's advantage is its reward, standardised within its group; no
value model is needed. The importance ratio is a real one: the denominator is the logprob that the engine sampled with.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from forge_env.errors import UserError
from trainers.advantages import group_relative
from trainers.config import RunConfig
from trainers.loop import Objective
from trainers.losses import GRPOLoss


@dataclass(kw_only=True)
class GRPOConfig:
    n_samples: int = 8
    """Episodes of one group."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    beta: float = 0.0
    """Weight of the KL penalty (k3); 0 is none. There being no reference model, it is against the generator."""
    aggregation: Literal["token", "sequence"] = "token"
    """"token" weighs every sampled token alike, "sequence" every episode."""
    std_eps: float = 1e-4


@dataclass(kw_only=True)
class Config(RunConfig):
    grpo: GRPOConfig = field(default_factory=GRPOConfig)


def objective(config: GRPOConfig) -> Objective:
    """J = E[ mean over sampled tokens of min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) ] - beta KL

    with r = p_new(token) / p_engine(token) and A = (R - mean(R)) / (std(R) + eps) over the group.
    """
    if config.n_samples < 2:
        raise UserError(f"--grpo.n_samples is {config.n_samples}; an advantage needs at least 2 episodes of each task")
    return Objective(
        loss=GRPOLoss(
            clip_low=config.clip_low, clip_high=config.clip_high, beta=config.beta, aggregation=config.aggregation
        ),
        advantages=partial(group_relative, std_eps=config.std_eps),
        group_size=config.n_samples,
        kl_reference="generator" if config.beta > 0 else "",
    )


async def train(config: Config) -> None:
    """Warm up, measure, train, measure again."""
    from trainers.policy_gradient import run_policy_gradient

    await run_policy_gradient("grpo", config, objective(config.grpo))


def main() -> int:
    from trainers.entry import main as enter

    return enter(Config, train)


if __name__ == "__main__":
    sys.exit(main())
