"""Losses: small modules over named tensors.

The trainer passes whichever of these tensors a loss names: `logprobs, generator_logprobs, ref_logprobs,
padding_mask, entropy` of shape (episodes, tokens), `advantages` of shape (episodes, 1), and `normalizer`, a scalar.
A loss given a `normalizer` returns a sum over it, so that micro-batches and ranks simply add up; without one it
returns the mean over its own input. `normalizer_unit` says what is counted: valid tokens, or episodes that have any.

In the formulas r = exp(logprobs - generator_logprobs) is the importance ratio against the policy that really sampled,
A the advantage, sg(.) stops the gradient, and the loss is what is minimised. Settings that all losses share (`beta, kl,
entropy_coef, aggregation, correction, ...`) are those of `PolicyLoss`; the parts are in `loss_terms.py`.

Masked positions may hold anything, NaN and inf too: they are replaced before any arithmetic, because 0 * NaN is NaN
both in the value and in the gradient.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from forge_env.core.errors import UserError
from trainers.objective.loss_base import LossOptions, PolicyLoss, RatioLoss, check_range
from trainers.objective.loss_terms import Aggregation, sequence_mean
from trainers.objective.plain_losses import ReinforceLoss, SFTLoss, SimpleGRPOLoss

__all__ = [
    "CISPOLoss",
    "DAPOLoss",
    "GRPOLoss",
    "GSPOLoss",
    "PolicyLoss",
    "ReinforceLoss",
    "SAPOLoss",
    "SFTLoss",
    "SimpleGRPOLoss",
]


class GRPOLoss(RatioLoss):
    """Group relative policy optimisation: the clipped surrogate, with an optional KL penalty.

    Per token: `-min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A) + beta * k3`. Equation 3 of arXiv 2402.03300
    (GRPO); `clip_high > clip_low` is Clip-Higher of arXiv 2503.14476 (DAPO).

    Conventions: the paper has clip_low = clip_high = 0.2 and beta = 0.04, TRL 0.2, 0.2 and 0, verl 0.2, 0.2, no KL and
    dual_clip=3, torchforge beta = 0.1. Dr.GRPO (arXiv 2503.20783) is aggregation="constant" with advantages that are
    not divided by the standard deviation; the paper's own formula has no length in it, which is constant=1. TRL's
    "bnpo" is aggregation="token" over one micro-batch: without a `normalizer`.

    Args:
        clip_low: how far below 1 the ratio may go before it is clipped, within [0, 1].
        clip_high: how far above 1.
        beta: weight of the KL penalty against the reference model; 0 turns it off.
        aggregation: "sequence" is the mean over episodes of each episode's token mean (GRPO), "token" is the mean
            over all valid tokens (DAPO), "constant" is Dr.GRPO's. Episodes without a valid token count in none.
        dual_clip: bounds the loss of a negative advantage at -dual_clip * A, above 1 (arXiv 1912.09729; verl 3.0, TRL's
            `delta`); None does not, as in the paper.
        options: see `PolicyLoss`.

    Raises:
        UserError: on a value out of range, and in `forward` when beta > 0 and there are no `ref_logprobs`.
    """

    policy_term_vanishes = True

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
        super().__init__(beta=beta, aggregation=aggregation, **options)
        check_range("clip_low", clip_low, low=0.0, high=1.0)
        check_range("clip_high", clip_high, low=0.0)
        if dual_clip is not None and not dual_clip > 1 + clip_high:
            raise UserError(f"dual_clip={dual_clip} must be above 1 + clip_high={1 + clip_high:g}, or None for off.")
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.dual_clip = dual_clip

    def policy_term(self, log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        ratio = self.ratio(log_ratio, logprobs, mask).exp()
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        if self.dual_clip is not None:
            ratio = ratio.clamp(max=self.dual_clip)  # above both bounds: a positive advantage never sees it
        return -torch.minimum(ratio * advantages, clipped * advantages)

    def ratio(self, log_ratio: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
        """The logarithm of the ratio that is clipped: the token's own."""
        return log_ratio

    def clipped(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Where the gradient vanishes: below the range at A < 0, above it at A > 0."""
        ratio = self.ratio(log_ratio, log_ratio, mask).exp()
        low = (ratio < 1 - self.clip_low) & (advantages < 0)
        return low & mask, (ratio > 1 + self.clip_high) & (advantages > 0) & mask


class DAPOLoss(GRPOLoss):
    """Decoupled clip: GRPO's surrogate with Clip-Higher, the mean over all valid tokens, and no KL.

    Equations 8, 10 and 12 of arXiv 2503.14476. Dynamic sampling and overlong rewards are not the loss's: see
    `trainers.dapo`. TRL's "dapo" and verl's "token-mean" divide by the tokens of the whole step over all ranks, which
    is what `normalizer` does here.
    """

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        beta: float = 0.0,
        aggregation: Aggregation = "token",
        *,
        dual_clip: float | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(clip_low, clip_high, beta, aggregation, dual_clip=dual_clip, **options)


class GSPOLoss(GRPOLoss):
    """Group sequence policy optimisation: one ratio for each episode, the geometric mean of its tokens' ratios.

    Per episode: `-min(s * A, clip(s, 1 - clip_low, 1 + clip_high) * A)` with `s = exp(mean over tokens of log r)`;
    arXiv 2507.18071, equations 5 and 7. It is computed per token as `s_t = sg(s) * exp(logprobs - sg(logprobs))`, the
    paper's GSPO-token form, as verl does: for one advantage per episode the value and the gradient are those of the
    episode's ratio (TRL's importance_sampling_level="sequence"), and advantages per token work too. A token
    that a correction leaves out has no gradient here, as in verl; in TRL it keeps its share of the episode's ratio. The
    "sequence_" corrections are the same in all. The clip range is the paper's, hundreds of times narrower than GRPO's,
    since a mean of log-ratios varies much less.
    """

    def __init__(
        self,
        clip_low: float = 3e-4,
        clip_high: float = 4e-4,
        beta: float = 0.0,
        aggregation: Aggregation = "sequence",
        *,
        dual_clip: float | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(clip_low, clip_high, beta, aggregation, dual_clip=dual_clip, **options)

    def ratio(self, log_ratio: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
        return sequence_mean(log_ratio, mask).detach() + logprobs - logprobs.detach()


class SAPOLoss(RatioLoss):
    """Soft adaptive policy optimisation: a smooth gate in place of the clip.

    Per token: `-(4 / tau) * sigmoid(tau * (r - 1)) * A`, with tau = tau_pos where A > 0 and tau_neg elsewhere;
    arXiv 2511.20347. At r = 1 the gate's slope is 1, so on-policy the gradient is GRPO's; it decays smoothly away from
    there. TRL, verl and AReaL agree on this form and on 1.0 and 1.05.

    Args:
        tau_pos: temperature of the gate for positive advantages, above 0: the larger, the faster the decay.
        tau_neg: the same for the others.
        beta: see `PolicyLoss`, as `aggregation` and `options`.
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
        tau = torch.full_like(advantages, self.tau_neg).masked_fill(advantages > 0, self.tau_pos)
        return -(4 / tau) * torch.sigmoid(tau * (log_ratio.exp() - 1)) * advantages


class CISPOLoss(RatioLoss):
    """Clipped importance sampling policy optimisation: REINFORCE weighted by the clipped, detached ratio.

    Per token: `-sg(clip(r, 1 - clip_low, 1 + clip_high)) * A * logprobs`; arXiv 2506.13585, equations 4 and 5. No token
    loses its gradient, only its weight is bounded.

    Conventions differ: here, in verl and in slime the bounds are distances from 1; TRL's `epsilon_high` is the largest
    ratio itself, without a lower bound. The default, no lower bound and a ratio of at most 5, is slime's and TRL's
    recommendation of arXiv 2510.13786; TRL's epsilon_high=e is clip_high=e - 1, clip_low=1.

    Args:
        clip_low: how far below 1 the weight may go, within [0, 1]; 1 is no lower bound.
        clip_high: how far above 1.
        beta: see `PolicyLoss`, as `aggregation` and `options`.
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
        """Where the weight is bounded."""
        ratio = log_ratio.exp()
        return (ratio < 1 - self.clip_low) & mask, (ratio > 1 + self.clip_high) & mask
