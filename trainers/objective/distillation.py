"""On-policy distillation: a teacher judges every token that the policy has sampled.

At the sampled token (top_k 0), as a reward:

    A_t = A + coef (log p_teacher(y_t | y_<t) - log p_engine(y_t | y_<t))

The difference is minus the estimate k1 of KL(policy || teacher), the reverse KL, at one token; in a policy gradient its
expectation is the gradient of that KL. A token answers for its own divergence alone, as in tinker-cookbook.

Over the teacher's K most likely tokens (top_k K), as a loss beside the policy's (arXiv 2306.13649 over the whole
vocabulary):

    L = L_policy + coef mean over tokens t of  sum over v of q_v (log q_v - log p_v)

with q of the policy and p of the teacher, and v over the K tokens and all others as one more, without which the policy
could escape to them. It is at most the KL, and the KL if K is the vocabulary.

Teachers' logprobs are taken at the sampling temperature. An episode that no teacher judges is trained on without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from forge_env.core.episode import Episode
from trainers.batching.batch import UNTAUGHT
from trainers.objective.credit import log_ratios
from trainers.objective.loss_terms import keep

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.batching.batch import MicroBatch

LEAST = 1e-6
"""Probability of all other tokens at least: in float32 the rest of a sum of 1 is rounding."""


def taught_advantages(
    coef: float, episode: Episode, advantage: float | np.ndarray, teacher_logprobs: np.ndarray
) -> np.ndarray:
    """A_t of the episode's sampled targets, in row order, float64, from A, one or one for each, and the teacher's
    logprobs of them."""
    return advantage - coef * log_ratios(episode, teacher_logprobs)


def teacher_kl(episodes: Sequence[Episode], teacher_logprobs: Sequence[np.ndarray]) -> float:
    """The estimate k1 of KL(policy || teacher), in nats a token: the mean over all sampled targets; 0 without one."""
    ratios = np.concatenate([np.zeros(0), *map(log_ratios, episodes, teacher_logprobs)])
    return float(ratios.sum() / max(len(ratios), 1))


def top_kl(logprobs: Tensor, teacher_logprobs: Tensor) -> Tensor:
    """KL(q || p) (N,) over K tokens and all others as one more, from their logprobs (N, K)."""
    q, p = logprobs.exp(), teacher_logprobs.exp()
    rest_q, rest_p = ((1 - each.sum(-1)).clamp(min=LEAST) for each in (q, p))
    return (q * (logprobs - teacher_logprobs)).sum(-1) + rest_q * (rest_q.log() - rest_p.log())


def distillation_loss(batch: MicroBatch, logprobs: Tensor | None) -> Tensor | None:
    """The sum of `top_kl` over the valid tokens of a micro-batch, a scalar; None without a teacher's tokens.

    `logprobs` (N, K) are of the teacher's tokens, with gradient.
    """
    if logprobs is None:
        return None
    valid = batch.loss_mask.flatten()[batch.slots] & (batch.teacher_logprobs[:, 0] != UNTAUGHT)
    return keep(top_kl(logprobs, batch.teacher_logprobs), valid).sum()
