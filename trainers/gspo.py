"""GSPO: group sequence policy optimisation (arXiv 2507.18071).

    python -m trainers.gspo --env code_exec
    python -m trainers.gspo --env math --training.sync_interval 4 --training.old_logprobs trainer

A reward belongs to an episode, and so does the importance ratio here: one number, the geometric mean of its tokens'
ratios, which is clipped as a whole. A mean of log-ratios moves little, so the clip range is far narrower than GRPO's.

It is narrower than what a bfloat16 engine and the trainer differ by on the same weights: a token's logprobs by 0.008 in
the mean, up to 0.03, against 1e-6 in float32. A ratio of new / engine would so clip 18% (A > 0) to 37% (A < 0) of the
episodes of 256 tokens before anything is learned. There the ratio is new / old by default, against the trainer's own
logprobs (`training.old_logprobs`), and the correction takes what lies between old and engine.

The paper takes 4 optimizer steps on each batch of rollouts, which is `training.sync_interval 4`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trainers.config import AlgorithmConfig, RunConfig
from trainers.objective.losses import GSPOLoss
from trainers.objective.objective import Objective, loss_options, make_objective


@dataclass(kw_only=True)
class GSPOConfig(AlgorithmConfig):
    clips_within_rounding: ClassVar[bool] = True

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    aggregation: Literal["token", "sequence", "constant"] = "sequence"


@dataclass(kw_only=True)
class Config(RunConfig):
    gspo: GSPOConfig = field(default_factory=GSPOConfig)


def objective(config: Config) -> Objective:
    """J = E[ mean over episodes of min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) ]

    with s = exp(mean over the episode's tokens of log(p_new / p_old)) and A = (R - mean(R)) / (std(R) + eps) over the
    group. p_old is the trainer's own at the last update of the engine's weights, or the engine's.
    """
    section = config.gspo
    loss = GSPOLoss(clip_low=section.clip_low, clip_high=section.clip_high, **loss_options(config, section))
    return make_objective("gspo", loss, section)


async def train(config: Config) -> None:
    """Warm up, measure, train, measure again."""
    from trainers.controller.policy_gradient import run_policy_gradient

    await run_policy_gradient("gspo", config, objective(config))


def main() -> int:
    from trainers.setup.entry import main as enter

    return enter(Config, train)


if __name__ == "__main__":
    sys.exit(main())
