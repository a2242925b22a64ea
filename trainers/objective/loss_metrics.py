"""What is measured beside the loss: the distance of the model from the policy that sampled, and what was clipped."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainers.batching.batch import MicroBatch
from trainers.objective.loss_terms import keep, kl_estimate, log_ratio

SUMS = ("ratio", "ratio_squared", "k1", "k3", "difference", "clipped_low", "clipped_high", "entropy", "has_entropy")
COUNTS = ("with_advantage", "without_gradient")
"""Sums over episodes; SUMS are over tokens."""


class LossMetrics:
    """Collects the metrics of one optimizer step over its micro-batches.

    `sums`, (11,), adds up over ranks, and `largest`, (2,), is their maximum; then `values` has the step's metrics.

    The ratio is the loss's own: model / generator, or model / old if the samples have old logprobs. The KL estimates
    and the difference are always against the generator.

    Args:
        loss: its `clipped(log_ratio, advantages, mask)`, if it has one, marks the tokens with a ratio out of bounds.
        device: of the batches.
    """

    def __init__(self, loss: Any, device: torch.device) -> None:
        self._clipped = getattr(loss, "clipped", None)
        # In float64: logprobs differ by about 1e-6 if trainer and engine agree.
        self.sums = torch.zeros(len(SUMS) + len(COUNTS), dtype=torch.float64, device=device)
        # The largest ratio, and the smallest with its sign turned.
        self.largest = torch.full((2,), -torch.inf, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, batch: MicroBatch, logprobs: Tensor, entropy: Tensor | None, gradient: Tensor | None = None) -> None:
        """Take one micro-batch in.

        Args:
            batch: as the loss was given it.
            logprobs: (episodes, tokens), as entropy.
            entropy: None if it was not computed.
            gradient: (episodes, tokens), of the loss with respect to the logprobs; None if the loss does not depend on
                them.
        """
        mask = batch.loss_mask
        difference = log_ratio(logprobs.double(), batch.generator_logprobs.double(), mask)
        old = batch.old_logprobs
        ratio_log = difference if old is None else log_ratio(logprobs.double(), old.double(), mask)
        ratio = keep(ratio_log.exp(), mask)
        none = torch.zeros_like(mask)
        low, high = (none, none)
        if self._clipped is not None:
            low, high = self._clipped(ratio_log, batch.advantages.double().expand(mask.shape), mask)
        parts = {
            "ratio": ratio,
            "ratio_squared": ratio * ratio,
            "k1": -difference,
            "k3": keep(kl_estimate(-difference, "k3"), mask),
            "difference": difference.abs(),
            "clipped_low": low,
            "clipped_high": high,
            "entropy": none if entropy is None else keep(entropy, mask),
            "has_entropy": none if entropy is None else mask,
        }
        matters = ((batch.advantages != 0) & mask).any(-1)  # (episodes,)
        learns = torch.zeros_like(matters) if gradient is None else (gradient != 0).any(-1)
        parts |= {"with_advantage": matters, "without_gradient": matters & ~learns}
        self.sums += torch.stack([parts[name].sum(dtype=torch.float64) for name in (*SUMS, *COUNTS)])
        bounds = torch.stack([ratio, -ratio]).masked_fill(~mask, -torch.inf)
        self.largest = torch.maximum(self.largest, bounds.flatten(1).amax(1))

    def values(self, tokens: int) -> dict[str, float]:
        """The metrics over the `tokens` valid tokens that were taken in.

        All are means over these tokens, except the bounds of the ratio, episodes_without_gradient and `ess`.

        Returns:
            ratio_mean, ratio_min, ratio_max; kl and kl_k1, the estimators k3 and k1 of KL(generator || model);
            mean_abs_logprob_difference; clipped_low and clipped_high, the shares of the tokens that the loss clips;
            episodes_without_gradient, the share of the episodes with an advantage that have no gradient;
            ess, the effective sample size (sum r)^2 / sum r^2 as a share of the tokens; entropy, if it was computed.
            Empty if there is no token.
        """
        if not tokens:
            return {}
        sums = dict(zip((*SUMS, *COUNTS), self.sums.tolist(), strict=True))
        mean = {name: sums[name] / tokens for name in SUMS}
        highest, lowest = (abs(bound) for bound in self.largest.tolist())
        values = {
            "ratio_mean": mean["ratio"],
            "ratio_min": lowest,
            "ratio_max": highest,
            "kl": mean["k3"],
            "kl_k1": mean["k1"],
            "mean_abs_logprob_difference": mean["difference"],
            "clipped_low": mean["clipped_low"],
            "clipped_high": mean["clipped_high"],
            "episodes_without_gradient": sums["without_gradient"] / max(sums["with_advantage"], 1.0),
            "ess": mean["ratio"] ** 2 / mean["ratio_squared"] if mean["ratio_squared"] else 0.0,
        }
        return values | ({"entropy": mean["entropy"]} if sums["has_entropy"] else {})
