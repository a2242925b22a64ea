"""The KL penalty as a part of the reward, rather than a term of the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from forge_env.core.episode import Episode
from trainers.objective.credit import by_turn, target_logprobs
from trainers.objective.loss_terms import MAX_K3, MAX_LOG_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class KLPenalty:
    """What a reward loses for leaving the reference model: beta times the sum over the sampled tokens of an estimate.

    The estimators are those of `trainers.objective.loss_terms.kl_estimate`, of d = generator logprob - reference
    logprob; with k1 it is the episode's log-ratio, as in the RLOO of TRL (arXiv 2402.14740, equation 1). The tokens
    were sampled from the generator, so it is the generator's own divergence, and no gradient goes through it.
    """

    beta: float
    kind: Literal["k1", "k2", "k3"] = "k1"

    def by_turn(self, episode: Episode, reference: Sequence[float]) -> list[float]:
        """The penalty of each turn's tokens.

        Args:
            episode: a valid one.
            reference: the reference model's logprobs of its sampled targets, in row order.

        Returns:
            One number for each turn. A token without a finite logprob on either side counts nothing.
        """
        with np.errstate(invalid="ignore"):
            d = np.asarray(target_logprobs(episode), dtype=np.float64) - np.asarray(reference, dtype=np.float64)
        d = np.where(np.isfinite(d), d, 0.0).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        values = d if self.kind == "k1" else d * d / 2 if self.kind == "k2" else np.minimum(np.expm1(-d) + d, MAX_K3)
        return [self.beta * math.fsum(part) for part in by_turn(values.tolist(), episode)]
