"""GRPO: group relative policy optimisation (arXiv 2402.03300).

    python -m trainers.grpo --env code_exec
    python -m trainers.grpo --env math --steps 60 --seed 1 --output outputs/mine
    python -m trainers.grpo --grpo.clip_high 0.2 --grpo.aggregation sequence --grpo.beta 0.04    # as in the paper
    python -m trainers.grpo --grpo.aggregation constant --grpo.normalization none                # Dr.GRPO

A group of episodes is sampled for each task. An episode's advantage is its reward, standardised within its group; no
value model is needed. The denominator of the importance ratio is the logprob that the engine sampled with.

Two defaults of this command are DAPO's (arXiv 2503.14476) and not the paper's: the upper clip is wider than the lower
one (Clip-Higher, 0.28 against 0.2), and every sampled token of the step weighs the same (aggregation "token"). The
paper has 0.2 on both sides, the mean over episodes of their token means, and a KL penalty with beta 0.04.

Dr.GRPO (arXiv 2503.20783) removes two weights of GRPO: the length of an episode and the spread of a group's rewards.

A step by hand. `GRPOLoss` with aggregation "token" gives the same loss, and `group_relative` the same advantages::

    import torch

    def advantages(rewards, eps=1e-4):  # (G,), of the G episodes of one task
        return (rewards - rewards.mean()) / (rewards.std() + eps)

    def grpo(groups, clip_low=0.2, clip_high=0.28, beta=0.04):
        # A group has the rewards (G,) of its episodes, a mask (G, T) of the sampled tokens, and three logprobs (G, T)
        # of them: new by the policy in training, engine by the policy that sampled, reference by a frozen model.
        losses, tokens = 0.0, 0
        for rewards, mask, new, engine, reference in groups:
            advantage = advantages(rewards)[:, None]  # every token answers for the whole episode
            ratio = (new - engine).exp()
            clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
            surrogate = torch.minimum(ratio * advantage, clipped * advantage)
            difference = reference - new
            kl = difference.exp() - difference - 1  # k3: never negative, and 0 where both models agree
            losses = losses + ((beta * kl - surrogate) * mask).sum()
            tokens = tokens + mask.sum()
        return losses / tokens  # every sampled token of the step weighs the same

    def step(optimizer, groups):
        optimizer.zero_grad()
        grpo(groups).backward()
        optimizer.step()
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Unpack

from annotated_types import Ge, Interval

from trainers.algorithm import Algorithm, loss_options, make_objective
from trainers.api import main
from trainers.config import RunConfig
from trainers.objective.loss_base import ClippedLoss, LossOptions
from trainers.objective.loss_terms import Aggregation
from trainers.objective.settings import AlgorithmConfig


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(AlgorithmConfig):
    clip_low: Annotated[float, Interval(ge=0, le=1)] = 0.2
    clip_high: Annotated[float, Ge(0)] = 0.28
    dual_clip: Annotated[float, Ge(0)] = 0.0
    """Bounds the loss of a negative advantage at this number times the advantage, for example 3 (arXiv 1912.09729). 0
    does not bound it."""


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    grpo: GRPOConfig = field(default_factory=GRPOConfig)


class GRPOLoss(ClippedLoss):
    """The clipped surrogate: per token -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), plus beta times the KL.

    Equation 3 of arXiv 2402.03300, with r = p_new / p_engine and k3 as the estimate of the KL.

    Conventions: the paper has clip_low = clip_high = 0.2 and beta = 0.04, TRL 0.2, 0.2 and 0, verl 0.2, 0.2, no KL and
    dual_clip=3, torchforge beta = 0.1. Dr.GRPO is aggregation="constant" with advantages that are not divided by the
    standard deviation. The paper's own formula has no length in it: constant=1. TRL's "bnpo" is aggregation="token"
    over one micro-batch: without a `normalizer`.

    The class's default is the paper's aggregation, "sequence"; the command's is "token".
    """

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        beta: float = 0.0,
        aggregation: Aggregation = "sequence",
        *,
        dual_clip: float | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(clip_low, clip_high, beta, aggregation, dual_clip=dual_clip, **options)


def loss(config: Config) -> GRPOLoss:
    section = config.grpo
    return GRPOLoss(
        clip_low=section.clip_low,
        clip_high=section.clip_high,
        dual_clip=section.dual_clip or None,
        **loss_options(config),
    )


GRPO = Algorithm(name="grpo", config=Config, loss=loss, objective=make_objective)
"""J = E[ mean over sampled tokens of min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) ] - beta KL

with r = p_new(token) / p_engine(token) and A = (R - mean(R)) / (std(R) + eps) over the group
(`trainers.objective.advantages.group_relative`).
"""

if __name__ == "__main__":
    raise SystemExit(main("trainers.grpo:GRPO"))
