"""What is measured beside the loss: the distance of the model from the policy that sampled, and what was clipped."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainers.batching.batch import MicroBatch
from trainers.objective.loss_terms import keep, kl_estimate, log_ratio

SUMS = ("ratio", "ratio_squared", "k1", "k3", "difference", "clipped_low", "clipped_high", "entropy", "has_entropy")
COUNTS = ("with_advantage", "without_gradient")
"""Of episodes, where the others are of tokens."""
DEPTHS = tuple(2048 << doubling for doubling in range(6))
"""Tokens of context at which a further estimate of the KL begins: to 65,536."""


class LossMetrics:
    """Collects the metrics of one optimizer step over its micro-batches.

    `sums` adds up over ranks, and `largest`, (2,), is their maximum; then `values` has the step's metrics.

    The ratio is the loss's own: model / generator, or model / old if the samples have old logprobs. The KL estimates
    and the difference are always against the generator.

    Args:
        loss: its `clipped(log_ratio, advantages, mask)`, if it has one, marks the tokens with a ratio out of bounds.
    """

    def __init__(self, loss: Any, device: torch.device) -> None:
        self._clipped = getattr(loss, "clipped", None)
        # In float64: the differences of logprobs are near 1e-6 where trainer and engine agree.
        # At the end are k3 and tokens of each depth.
        size = len(SUMS) + len(COUNTS) + 2 * (len(DEPTHS) + 1)
        self.sums = torch.zeros(size, dtype=torch.float64, device=device)
        self._depths = torch.tensor(DEPTHS, device=device)
        # The largest ratio, and the smallest with its sign turned.
        self.largest = torch.full((2,), -torch.inf, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, batch: MicroBatch, logprobs: Tensor, entropy: Tensor | None, gradient: Tensor | None = None) -> None:
        """Take one micro-batch in.

        Args:
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
        totals = torch.stack([parts[name].sum(dtype=torch.float64) for name in (*SUMS, *COUNTS)])
        self.sums += torch.cat([totals, *self._by_depth(batch, parts["k3"])])
        bounds = torch.stack([ratio, -ratio]).masked_fill(~mask, -torch.inf)
        self.largest = torch.maximum(self.largest, bounds.flatten(1).amax(1))

    def _by_depth(self, batch: MicroBatch, k3: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of k3, and the number of tokens, at each depth."""
        depth = torch.bucketize(batch.depths, self._depths, right=True).flatten()
        zeros = k3.new_zeros(len(DEPTHS) + 1)
        count = batch.loss_mask.to(k3.dtype).flatten()
        return zeros.index_add(0, depth, k3.flatten()), zeros.index_add(0, depth, count)

    def values(self, tokens: int) -> dict[str, float]:
        """The metrics over the `tokens` valid tokens that were taken in.

        All are means over these tokens, except the bounds of the ratio, episodes_without_gradient and `ess`.

        Returns:
            ratio_mean, ratio_min, ratio_max; kl and kl_k1, the estimators k3 and k1 of KL(generator || model);
            kl_from/TOKENS, where tokens are predicted from 2,048 others or more: kl of the tokens of each depth, up to
            the next one;
            mean_abs_logprob_difference; clipped_low and clipped_high, the shares that the loss clips;
            episodes_without_gradient, of the episodes that have an advantage the share that nothing is learned from;
            ess, the effective sample size (sum r)^2 / sum r^2 as a share of the tokens; entropy, where it was computed.
            Nothing at all where there is no token: a figure of none would be made up.
        """
        if not tokens:
            return {}
        totals, k3, counts = self.sums.split([len(SUMS) + len(COUNTS), len(DEPTHS) + 1, len(DEPTHS) + 1])
        sums = dict(zip((*SUMS, *COUNTS), totals.tolist(), strict=True))
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
        if counts[1:].any():
            by_depth = zip((0, *DEPTHS), k3.tolist(), counts.tolist(), strict=True)
            values |= {f"kl_from/{depth}": total / count for depth, total, count in by_depth if count}
        return values | ({"entropy": mean["entropy"]} if sums["has_entropy"] else {})
