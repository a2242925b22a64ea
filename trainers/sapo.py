"""SAPO: soft adaptive policy optimisation (arXiv 2511.20347).

    python -m trainers.sapo --env code_exec
    python -m trainers.sapo --env math --sapo.tau_neg 1.2

A clip gives no gradient to a token beyond it. SAPO has a smooth gate instead: a token's gradient fades with its
distance from the policy that sampled it, and faster if the advantage is negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from annotated_types import Gt

from forge_env.core.errors import UserError
from trainers.algorithm import Algorithm, loss_options, make_objective
from trainers.api import main
from trainers.config import RunConfig
from trainers.objective.loss_base import LossOptions, RatioLoss
from trainers.objective.loss_terms import Aggregation
from trainers.objective.settings import AlgorithmConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SAPOConfig(AlgorithmConfig):
    tau_pos: Annotated[float, Gt(0)] = 1.0
    """Temperature of the gate for positive advantages: the larger, the faster the gradient fades."""
    tau_neg: Annotated[float, Gt(0)] = 1.05
    """Temperature of the gate for all other advantages."""
    aggregation: Literal["token", "sequence", "constant"] = "sequence"


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    sapo: SAPOConfig = field(default_factory=SAPOConfig)


class SAPOLoss(RatioLoss):
    """A smooth gate instead of the clip: per token -(4 / tau) sigmoid(tau (r - 1)) A.

    tau is tau_pos if A > 0 and otherwise tau_neg, r = p_new / p_engine; arXiv 2511.20347. At r = 1 the gate's slope is
    1, so on-policy the gradient is GRPO's; it decays smoothly away from there. TRL, verl and AReaL have this form, and
    1.0 and 1.05.

    Args:
        tau_pos: temperature of the gate for positive advantages, above 0: the larger, the faster the decay.
        tau_neg: temperature of the gate for all other advantages.
    """

    policy_term_vanishes = True

    def __init__(
        self,
        tau_pos: float = 1.0,
        tau_neg: float = 1.05,
        beta: float = 0.0,
        aggregation: Aggregation = "sequence",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(beta=beta, aggregation=aggregation, **options)
        if not (tau_pos > 0 and tau_neg > 0):
            raise UserError(f"tau_pos={tau_pos}, tau_neg={tau_neg}: both must be above 0.")
        self.tau_pos = tau_pos
        self.tau_neg = tau_neg

    def policy_term(self, log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        tau = advantages.new_full(advantages.shape, self.tau_neg).masked_fill(advantages > 0, self.tau_pos)
        return -(4 / tau) * (tau * (log_ratio.exp() - 1)).sigmoid() * advantages


def loss(config: Config) -> SAPOLoss:
    section = config.sapo
    return SAPOLoss(tau_pos=section.tau_pos, tau_neg=section.tau_neg, **loss_options(config))


SAPO = Algorithm(name="sapo", config=Config, loss=loss, objective=make_objective)
"""J = E[ mean over episodes of the mean over their tokens of (4 / tau) sigmoid(tau (r - 1)) A ]

with r = p_new(token) / p_engine(token), tau = tau_pos if A > 0 and otherwise tau_neg, and A = (R - mean(R)) / (std(R) +
eps) over the group (`trainers.objective.advantages.group_relative`).
"""

if __name__ == "__main__":
    raise SystemExit(main("trainers.sapo:SAPO"))
