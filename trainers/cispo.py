"""CISPO: clipped importance sampling policy optimisation (arXiv 2506.13585).

    python -m trainers.cispo --env code_exec
    python -m trainers.cispo --env math --cispo.clip_high 2

A clipped surrogate gives a token that has moved too far no gradient at all, and rare tokens that open a line of thought
are the first to go. CISPO bounds the weight of a token instead, and every token keeps its gradient. The bounds are
distances from 1, as for the other algorithms: clip_high 4 is a weight of at most 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Unpack

from annotated_types import Ge, Interval

from trainers.algorithm import Algorithm, loss_options, make_objective
from trainers.api import main
from trainers.config import RunConfig
from trainers.objective.loss_base import LossOptions, RatioLoss, check_range
from trainers.objective.loss_terms import Aggregation
from trainers.objective.settings import AlgorithmConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CISPOConfig(AlgorithmConfig):
    clip_low: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """1 means no lower bound."""
    clip_high: Annotated[float, Ge(0)] = 4.0


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    cispo: CISPOConfig = field(default_factory=CISPOConfig)


class CISPOLoss(RatioLoss):
    """REINFORCE, weighted by the clipped ratio: per token -sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p.

    arXiv 2506.13585, equations 4 and 5, with r = p_new / p_engine; sg(.) stops the gradient. Every token keeps its
    gradient, only its weight is bounded.

    Conventions differ. Here, in verl and in slime the bounds are distances from 1. TRL's `epsilon_high` is the largest
    ratio itself, without a lower bound: TRL's epsilon_high=e is clip_high=e - 1, clip_low=1. The default, no lower
    bound and a ratio of at most 5, is slime's. TRL recommends it too, after arXiv 2510.13786.

    Args:
        clip_low: how far below 1 the weight may go, within [0, 1]; 1 means no lower bound.
        clip_high: how far above 1.
    """

    policy_term_vanishes = True

    def __init__(
        self,
        clip_low: float = 1.0,
        clip_high: float = 4.0,
        beta: float = 0.0,
        aggregation: Aggregation = "token",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(beta=beta, aggregation=aggregation, **options)
        check_range("clip_low", clip_low, low=0.0, high=1.0)
        check_range("clip_high", clip_high, low=0.0)
        self.clip_low = clip_low
        self.clip_high = clip_high

    def policy_term(self, log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        weight = log_ratio.detach().exp().clamp(1 - self.clip_low, 1 + self.clip_high)
        return -weight * advantages * logprobs

    def clipped(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """True for tokens with a bounded weight."""
        ratio = log_ratio.exp()
        return (ratio < 1 - self.clip_low) & mask, (ratio > 1 + self.clip_high) & mask


def loss(config: Config) -> CISPOLoss:
    section = config.cispo
    return CISPOLoss(clip_low=section.clip_low, clip_high=section.clip_high, **loss_options(config))


CISPO = Algorithm(name="cispo", config=Config, loss=loss, objective=make_objective)
"""J = E[ mean over sampled tokens of sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p_new(token) ]

with r = p_new(token) / p_engine(token), no gradient through sg(.), and A = (R - mean(R)) / (std(R) + eps) over the
group (`trainers.objective.advantages.group_relative`).
"""

if __name__ == "__main__":
    raise SystemExit(main("trainers.cispo:CISPO"))
