"""Losses without an importance ratio in their gradient: REINFORCE, the on-policy form of GRPO, and SFT."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from forge_env.core.errors import UserError
from trainers.objective.loss_base import LossOptions, PolicyLoss
from trainers.objective.loss_terms import Aggregation, aggregate, keep, log_ratio, per_token, valid_tokens


class ReinforceLoss(PolicyLoss):
    """REINFORCE: the plain policy gradient, with the detached importance ratio as a bounded weight.

    Per token: `-A * logprobs * sg(clip(q, 1 - clip_ratio, 1 + clip_ratio))`, where q is the ratio of the model to
    `old_logprobs` if given, else to `generator_logprobs`, else to `ref_logprobs`. clip_ratio=None is no weight at all,
    the textbook's REINFORCE, which is right on-policy only. torchforge bounds q to [0.1, 10], which is not symmetric
    around 1. RLOO (arXiv 2402.14740) is this with leave-one-out advantages; TRL's RLOO clips the ratio of whole
    sequences instead.

    Args:
        clip_ratio: how far from 1 the weight may be, within (0, 1]; None for no weight.
        beta: see `PolicyLoss`, as `aggregation` and `options`.

    Raises:
        UserError: in `forward`, when the weight needs logprobs that are not given.
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
        padding_mask: Tensor,
        generator_logprobs: Tensor | None = None,
        ref_logprobs: Tensor | None = None,
        normalizer: Tensor | None = None,
        entropy: Tensor | None = None,
        old_logprobs: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss; the tensors are those of `RatioLoss.forward`."""
        mask = valid_tokens(padding_mask, generator_logprobs)
        behaviour = generator_logprobs if old_logprobs is None else old_logprobs
        weight = self._ratio(logprobs, behaviour, ref_logprobs, mask)
        if generator_logprobs is not None:
            weight = weight * self._weight(logprobs, generator_logprobs, old_logprobs, mask)
        policy = -weight * per_token(advantages, mask) * keep(logprobs, mask)
        return self._total(policy, mask, logprobs, ref_logprobs, entropy, normalizer)

    def _ratio(self, logprobs: Tensor, behaviour: Tensor | None, ref: Tensor | None, mask: Tensor) -> Tensor:
        if self.clip_ratio is None:
            return torch.ones_like(logprobs)
        behaviour = ref if behaviour is None else behaviour
        if behaviour is None:
            raise UserError(f"clip_ratio={self.clip_ratio} needs generator_logprobs or ref_logprobs.")
        ratio = log_ratio(logprobs, behaviour, mask).detach().exp()
        return ratio.clamp(1 - self.clip_ratio, 1 + self.clip_ratio)

    def clipped(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Where the weight is bounded."""
        clip_ratio = float("inf") if self.clip_ratio is None else self.clip_ratio
        ratio = log_ratio.exp()
        return (ratio < 1 - clip_ratio) & mask, (ratio > 1 + clip_ratio) & mask


class SimpleGRPOLoss(PolicyLoss):
    """GRPO for exactly on-policy steps: the gradient of ratio 1, plus `beta * k3`.

    Per token: `-exp(logprobs - sg(logprobs)) * A + beta * k3`, as torchforge's guides have it. It knows nothing of the
    policy that sampled: a stale or mismatched token gets the same weight as any other, so no page uses it.

    Args:
        beta: weight of the KL penalty; 0 needs no `ref_logprobs`. torchforge's own default is 0.1.
        aggregation: see `PolicyLoss`, as `options`.
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
        padding_mask: Tensor,
        ref_logprobs: Tensor | None = None,
        normalizer: Tensor | None = None,
        entropy: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss; the tensors are those of `RatioLoss.forward`."""
        mask = valid_tokens(padding_mask, None)
        kept = keep(logprobs, mask)
        policy = -(kept - kept.detach()).exp() * per_token(advantages, mask)
        return self._total(policy, mask, logprobs, ref_logprobs, entropy, normalizer)


class SFTLoss(nn.Module):
    """Supervised fine-tuning: the mean negative log-likelihood of the tokens under `padding_mask`."""

    normalizer_unit = "tokens"

    def forward(self, logprobs: Tensor, padding_mask: Tensor, normalizer: Tensor | None = None) -> Tensor:
        """Return the scalar loss; `logprobs` and `padding_mask` are (episodes, tokens), `normalizer` a scalar."""
        mask = padding_mask.bool()
        return aggregate(-keep(logprobs, mask), mask, "token", normalizer=normalizer)
