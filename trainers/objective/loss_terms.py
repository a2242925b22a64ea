"""The parts of losses: masking, log-ratios, KL estimates, corrections of importance ratios, aggregation.

Plain functions over tensors of shape (episodes, tokens), below (E, T). No masked position is read, so it may hold
anything, NaN and inf too. This file and the losses import no torch: `--help` and a typo must be fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

# exp(20) = 4.9e8 still squares in float32; no honest log-ratio comes near, so this only prevents overflow.
MAX_LOG_RATIO = 20.0

MAX_K3 = 10.0
"""Largest k3 of one token, as in verl. At a log-ratio of -20 k3 is 4.9e8: one token would be the whole loss."""

Aggregation = Literal["token", "sequence", "constant"]
KL = Literal["k1", "k2", "k3"]
Correction = Literal["none", "truncate", "mask", "sequence_truncate", "sequence_mask"]


def keep(values: Tensor, mask: Tensor) -> Tensor:
    """Zero the masked positions. `where` makes the gradient there exactly 0; a product would not, if they hold NaN or
    inf."""
    return values.where(mask, values.new_zeros(()))


def per_token(values: Tensor, mask: Tensor) -> Tensor:
    """Spread (E,), (E, 1) or (E, T) over the tokens, 0 at masked tokens."""
    return keep(values.reshape(len(values), -1).expand(mask.shape), mask)


def valid_tokens(loss_mask: Tensor, generator_logprobs: Tensor | None) -> Tensor:
    """The tokens to learn from. A token without a finite generator logprob has no ratio, and is left out."""
    mask = loss_mask.bool()
    return mask if generator_logprobs is None else mask & generator_logprobs.isfinite()


def log_ratio(logprobs: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    """log(p / p_other) of each token, within +-MAX_LOG_RATIO, 0 at masked tokens."""
    return (keep(logprobs, mask) - keep(other, mask)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the valid tokens of each episode, (E, 1); 0 for an episode without any."""
    return keep(values, mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


def kl_estimate(log_ratio_to_ref: Tensor, estimator: KL) -> Tensor:
    """Estimate KL(policy || reference) at each sampled token from d = logprobs - reference_logprobs.

    k1 = d is unbiased and may be negative. k2 = d^2 / 2 is biased, and on-policy its gradient is the KL's own. k3 =
    exp(-d) + d - 1 is unbiased and never negative, and its gradient is not the KL's. The gradient of k1 is the
    logprob's, with mean 0 over the policy's own samples: as a term of a loss it holds nothing back.

    k3 is at most MAX_K3, with gradient 0 beyond: from d = -2.6 down, and from d = 11 up.
    """
    d = log_ratio_to_ref
    return d if estimator == "k1" else d * d / 2 if estimator == "k2" else ((-d).expm1() + d).clamp(max=MAX_K3)


def correction_weight(log_rho: Tensor, mode: Correction, low: float, high: float) -> Tensor:
    """The factor that replaces rho = exp(log_rho), detached.

    "truncate" clamps rho to [low, high] (TIS). "mask" is rho within [low, high] and 0 outside (IcePop). The "sequence_"
    modes do the same with the product of an episode's ratios.

    Args:
        log_rho: (E, T) log-ratio of the trainer's policy to the policy that sampled; 0 at masked tokens.

    Returns:
        (E, T), or (E, 1) for a "sequence_" mode.
    """
    log_rho = log_rho.detach()
    if mode == "none":
        return log_rho.new_ones(log_rho.shape)
    if mode.startswith("sequence_"):
        log_rho = log_rho.sum(-1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    rho = log_rho.exp()
    if mode.endswith("truncate"):
        return rho.clamp(low, high)
    return keep(rho, (rho >= low) & (rho <= high))


def correction_inside(log_rho: Tensor, mode: Correction, low: float, high: float) -> Tensor:
    """The factor for an objective with rho in its own ratio: 1 if rho lies within [low, high].

    "truncate" makes the total weight at most `high`; "mask" leaves the token, or the episode, out.
    """
    weight = correction_weight(log_rho, mode, low, high)
    if mode == "none":
        return weight
    if mode.startswith("sequence_"):
        log_rho = log_rho.sum(-1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return weight / log_rho.detach().exp()


def aggregate(
    values: Tensor, mask: Tensor, aggregation: Aggregation, *, constant: float = 1.0, normalizer: Tensor | None = None
) -> Tensor:
    """Reduce per-token losses, (E, T) and 0 at masked tokens, to one number.

    "token" is the sum over the number of valid tokens. "sequence" is the mean over episodes of their token means.
    "constant" is the mean over episodes of their token sums / `constant`. An episode without a valid token does not
    count. A `normalizer` replaces the number of tokens or episodes as the divisor.
    """
    lengths = mask.sum(-1)  # (E,)
    if aggregation == "token":
        total, count = values.sum(), lengths.sum()
    else:
        divisor = lengths.clamp(min=1) if aggregation == "sequence" else constant
        total, count = (values.sum(-1) / divisor).sum(), (lengths > 0).sum()
    return total / (count.clamp(min=1) if normalizer is None else normalizer)
