"""Losses: small modules over named tensors.

The trainer passes whichever of these tensors a loss names: `logprobs, generator_logprobs, ref_logprobs,
padding_mask, entropy` of shape (episodes, tokens), `advantages` of shape (episodes, 1), and `normalizer`, a scalar.
A loss given a `normalizer` returns a sum over it, so that micro-batches and ranks simply add up; without one it
returns the mean over its own input. `normalizer_unit` says what is counted: valid tokens, or episodes that have any.

Masked positions may hold anything, NaN and inf too: they are replaced before any arithmetic, because 0 * NaN is NaN
both in the value and in the gradient.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from forge_env.errors import UserError

# exp(20) = 4.9e8 still squares in float32; no honest log-ratio comes near, so this only prevents overflow.
MAX_LOG_RATIO = 20.0


class GRPOLoss(nn.Module):
    """Group relative policy optimisation: the clipped surrogate, with an optional KL penalty.

    Per token: `-min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A) + beta * k3`, where
    `r = exp(logprobs - generator_logprobs)` is the importance ratio against the policy that really sampled, and
    `k3 = exp(ref - logprobs) - (ref - logprobs) - 1`. Equation 3 of arXiv 2402.03300 (GRPO); `clip_high > clip_low`
    is Clip-Higher of arXiv 2503.14476 (DAPO).

    Args:
        clip_low: how far below 1 the ratio may go before it is clipped.
        clip_high: how far above 1.
        beta: weight of the KL penalty against the reference model; 0 turns it off.
        aggregation: "sequence" is the mean over episodes of each episode's token mean (GRPO), "token" is the mean
            over all valid tokens (DAPO). Episodes without a valid token count in neither.

    Raises:
        UserError: on a value out of range, and in `forward` when beta > 0 and there are no `ref_logprobs`.
    """

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        beta: float = 0.0,
        aggregation: Literal["sequence", "token"] = "sequence",
    ) -> None:
        super().__init__()
        if not 0 <= clip_low <= 1 or clip_high < 0 or beta < 0:
            raise UserError(
                f"clip_low={clip_low}, clip_high={clip_high}, beta={beta}: clip_low must lie in [0, 1], "
                "clip_high and beta must not be negative."
            )
        if aggregation not in ("sequence", "token"):
            raise UserError(f"aggregation={aggregation!r} is not known: use 'sequence' or 'token'.")
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.beta = beta
        self.aggregation = aggregation
        self.normalizer_unit = "episodes" if aggregation == "sequence" else "tokens"

    def forward(
        self,
        logprobs: Tensor,
        generator_logprobs: Tensor,
        advantages: Tensor,
        padding_mask: Tensor,
        ref_logprobs: Tensor | None = None,
        normalizer: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss.

        Args:
            logprobs: (episodes, tokens) of the model being trained, with gradient.
            generator_logprobs: (episodes, tokens) of the policy that sampled.
            advantages: (episodes,), (episodes, 1) or (episodes, tokens).
            padding_mask: (episodes, tokens) bool, True on the tokens to learn from.
            ref_logprobs: (episodes, tokens) of the reference model; needed when beta > 0.
            normalizer: what to divide the sum by; None for the number of episodes or tokens given.
        """
        logprobs = _keep(logprobs, padding_mask)  # (E, T)
        log_ratio = logprobs - _keep(generator_logprobs, padding_mask)
        ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        weight = _keep(advantages.view(len(advantages), -1).expand_as(ratio), padding_mask)
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        per_token = -torch.minimum(ratio * weight, clipped * weight)
        if self.beta > 0:
            per_token = per_token + self.beta * self._penalty(logprobs, ref_logprobs, padding_mask)
        return _aggregate(_keep(per_token, padding_mask), padding_mask, self.aggregation, normalizer)

    def _penalty(self, logprobs: Tensor, ref_logprobs: Tensor | None, padding_mask: Tensor) -> Tensor:
        """The k3 estimator of KL(policy || reference), per token: never negative, exact in expectation."""
        if ref_logprobs is None:
            raise UserError(f"beta={self.beta} needs ref_logprobs: give a reference model, or set beta to 0.")
        difference = _keep(ref_logprobs, padding_mask) - logprobs
        difference = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return difference.exp() - difference - 1


class SFTLoss(nn.Module):
    """Supervised fine-tuning: the mean negative log-likelihood of the tokens under `padding_mask`."""

    normalizer_unit = "tokens"

    def forward(self, logprobs: Tensor, padding_mask: Tensor, normalizer: Tensor | None = None) -> Tensor:
        """Return the scalar loss; `logprobs` and `padding_mask` are (episodes, tokens), `normalizer` a scalar."""
        return _aggregate(-_keep(logprobs, padding_mask), padding_mask, "token", normalizer)


def _keep(values: Tensor, padding_mask: Tensor) -> Tensor:
    """Zero the masked positions. `where` and not a product: the gradient there is exactly zero, whatever they hold."""
    return torch.where(padding_mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def _aggregate(per_token: Tensor, padding_mask: Tensor, aggregation: str, normalizer: Tensor | None) -> Tensor:
    """Sum per-token losses, (episodes, tokens) and zero where masked, and divide as `aggregation` says."""
    lengths = padding_mask.sum(-1)  # (episodes,)
    if aggregation == "sequence":
        total = (per_token.sum(-1) / lengths.clamp(min=1)).sum()
        count = (lengths > 0).sum()
    else:
        total = per_token.sum()
        count = lengths.sum()
    return total / (count.clamp(min=1) if normalizer is None else normalizer)
