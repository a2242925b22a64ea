"""Losses that belong to no algorithm: the on-policy form of GRPO in torchforge's guides, and SFT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from trainers.objective.loss_base import LossOptions, PolicyLoss, TensorLoss
from trainers.objective.loss_terms import Aggregation, aggregate, keep, per_token, valid_tokens

if TYPE_CHECKING:
    from torch import Tensor


class SimpleGRPOLoss(PolicyLoss):
    """GRPO for exactly on-policy steps: the gradient of ratio 1, plus `beta * k3`.

    Per token: `-exp(logprobs - sg(logprobs)) * A + beta * k3`, as in torchforge's guides. It ignores the policy that
    sampled: a stale or mismatched token gets the same weight as any other, so no algorithm uses it.

    Args:
        beta: weight of the KL penalty; 0 needs no `reference_logprobs`. torchforge's own default is 0.1.
    """

    policy_term_vanishes = True

    def __init__(
        self, beta: float = 0.0, aggregation: Aggregation = "sequence", **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(beta=beta, aggregation=aggregation, **options)

    def forward(
        self,
        logprobs: Tensor,
        advantages: Tensor,
        loss_mask: Tensor,
        reference_logprobs: Tensor | None = None,
        normalizer: Tensor | None = None,
        entropy: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss; the tensors are as in `RatioLoss.forward`."""
        mask = valid_tokens(loss_mask, None)
        valid_logprobs = keep(logprobs, mask)
        policy = -(valid_logprobs - valid_logprobs.detach()).exp() * per_token(advantages, mask)
        return self._total(policy, mask, logprobs, reference_logprobs, entropy, normalizer)


class SFTLoss(TensorLoss):
    """Supervised fine-tuning: the mean negative log-likelihood of the tokens under `loss_mask`."""

    normalizer_unit = "tokens"

    def forward(self, logprobs: Tensor, loss_mask: Tensor, normalizer: Tensor | None = None) -> Tensor:
        """Return the scalar loss; `logprobs` and `loss_mask` are (episodes, tokens), `normalizer` a scalar."""
        mask = loss_mask.bool()
        return aggregate(-keep(logprobs, mask), mask, "token", normalizer=normalizer)
