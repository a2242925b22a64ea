"""REINFORCE, the plain policy gradient, with a baseline from the other episodes of the same task; and RLOO.

    python -m trainers.reinforce --env code_exec
    python -m trainers.reinforce --reinforce.baseline leave_one_out                      # RLOO
    python -m trainers.reinforce --reinforce.baseline none                               # without any baseline

RLOO (arXiv 2402.14740) subtracts the mean of the other episodes, which does not depend on the episode's own reward.
This is n / (n - 1) times the difference from the mean of all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from annotated_types import Ge

from forge_env.core.errors import UserError
from trainers.algorithm import Algorithm, loss_options, make_objective
from trainers.api import main
from trainers.config import RunConfig
from trainers.objective.loss_base import LossOptions, PolicyLoss
from trainers.objective.loss_terms import Aggregation, keep, log_ratio, per_token, valid_tokens
from trainers.objective.settings import AlgorithmConfig

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.objective.loss_call import Loss
    from trainers.objective.objective import Objective


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(AlgorithmConfig):
    baseline: Literal["mean", "leave_one_out", "none"] = "mean"
    """What is subtracted from an episode's reward."""
    clip_ratio: Annotated[float, Ge(0)] = 0.2
    """A token's importance weight differs from 1 by this at most. 0 means no weight, which is right on-policy only."""
    normalization: Literal["none", "group", "batch", "mean"] = "none"


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    reinforce: ReinforceConfig = field(default_factory=ReinforceConfig)


class ReinforceLoss(PolicyLoss):
    """The policy gradient with a bounded weight: per token -sg(clip(r, 1 - clip_ratio, 1 + clip_ratio)) A log p.

    r is the ratio of the model to `old_logprobs` if given, else to `generator_logprobs`, else to `reference_logprobs`;
    sg(.) stops the gradient. clip_ratio=None means no weight at all: the textbook's REINFORCE, which is right on-policy
    only. torchforge bounds r to [0.1, 10], which is not symmetric around 1. RLOO (arXiv 2402.14740) is this loss with
    leave-one-out advantages; TRL's RLOO clips the ratio of whole sequences instead.

    Args:
        clip_ratio: the weight may differ from 1 by this at most, within (0, 1]; None for no weight.

    Raises:
        UserError: `forward` is not given the logprobs that the weight needs.
    """

    policy_term_vanishes = True

    def __init__(
        self,
        clip_ratio: float | None = None,
        beta: float = 0.0,
        aggregation: Aggregation = "token",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(beta=beta, aggregation=aggregation, **options)
        if clip_ratio is not None and not clip_ratio > 0:
            raise UserError(f"clip_ratio={clip_ratio} must be above 0, or None for no importance weight.")
        self.clip_ratio = clip_ratio

    def forward(
        self,
        logprobs: Tensor,
        advantages: Tensor,
        loss_mask: Tensor,
        generator_logprobs: Tensor | None = None,
        reference_logprobs: Tensor | None = None,
        normalizer: Tensor | None = None,
        entropy: Tensor | None = None,
        old_logprobs: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss; the tensors are as in `RatioLoss.forward`."""
        mask = valid_tokens(loss_mask, generator_logprobs)
        old = generator_logprobs if old_logprobs is None else old_logprobs
        before = reference_logprobs if old is None else old
        if self.clip_ratio is None:
            weight = logprobs.new_ones(logprobs.shape)
        elif before is None:
            raise UserError(f"clip_ratio={self.clip_ratio} needs generator_logprobs or reference_logprobs.")
        else:
            ratio = log_ratio(logprobs, before, mask).detach().exp()
            weight = ratio.clamp(1 - self.clip_ratio, 1 + self.clip_ratio)
        if generator_logprobs is not None:
            weight = weight * self._weight(logprobs, generator_logprobs, old_logprobs, mask)
        policy = -weight * per_token(advantages, mask) * keep(logprobs, mask)
        return self._total(policy, mask, logprobs, reference_logprobs, entropy, normalizer)

    def clipped(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """True for tokens with a bounded weight."""
        clip_ratio = float("inf") if self.clip_ratio is None else self.clip_ratio
        ratio = log_ratio.exp()
        return (ratio < 1 - clip_ratio) & mask, (ratio > 1 + clip_ratio) & mask


def loss(config: Config) -> ReinforceLoss:
    section = config.reinforce
    return ReinforceLoss(clip_ratio=section.clip_ratio or None, **loss_options(config))


def objective(config: Config, loss: Loss) -> Objective:
    return make_objective(config, loss, baseline=config.reinforce.baseline)


REINFORCE = Algorithm(name="reinforce", config=Config, loss=loss, objective=objective)
"""J = E[ mean over sampled tokens of sg(clip(r, 1 - clip_ratio, 1 + clip_ratio)) (R - b) log p_new(token) ]

with r = p_new(token) / p_engine(token), no gradient through sg(.), and b the baseline: the mean of the group's rewards,
the mean of the other episodes' rewards, or 0 (`centred`, `leave_one_out`, `no_baseline` of
`trainers.objective.advantages`).
"""

if __name__ == "__main__":
    raise SystemExit(main("trainers.reinforce:REINFORCE"))
