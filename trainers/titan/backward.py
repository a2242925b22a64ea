"""From logprobs to gradients: the loss of one optimizer step, of complete and of split episodes.

A loss sees complete episodes, (E, T): GSPO's ratio, the mean over an episode and a user's own loss may couple any of
its tokens. The rows of a split episode are in several micro-batches, perhaps of several ranks, so it is never in memory
as one graph. Its gradient is taken by the chain rule, d loss / d weights = sum over tokens of d loss / d logprob x d
logprob / d weights, and likewise for the entropy:

1. A forward pass without gradient over the micro-batches of split episodes gives the logprobs and entropies of their
   tokens. They are summed over the ranks.
2. The loss is called on each split episode, with these values as leaves. This gives the first factor, one number per
   token.
3. A forward pass with gradient over each of these micro-batches, and a backward pass from its logprobs and entropies,
   which begins with the numbers of step 2.

This is exact for every loss, and costs one more forward pass of the split episodes. Every rank with rows of an episode
calls the loss on it; the rank with its first row adds it to the step's loss and metrics.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from trainers.batching.batch import MicroBatch, Sample, pack
from trainers.objective.loss_call import LossCall
from trainers.objective.loss_metrics import LossMetrics


class StepLoss:
    """The loss of one optimizer step, called on one micro-batch after the other.

    Args:
        normalizer: scalar, the loss's units over all micro-batches and ranks.
    """

    def __init__(self, call: LossCall, normalizer: Tensor, metrics: LossMetrics, *, old_is_present: bool) -> None:
        self._call = call
        self._normalizer = normalizer
        self._metrics = metrics
        self._old_is_present = old_is_present
        self.total = torch.zeros_like(normalizer)
        """This rank's part of the loss."""

    def backward(
        self,
        batch: MicroBatch,
        logprobs: Tensor,
        entropies: Tensor | None,
        *,
        beside: Tensor | None = None,
        is_counted: bool = True,
    ) -> None:
        """Call the loss on complete episodes, and accumulate the gradients of logprobs and entropies.

        Args:
            logprobs: (N,) of the sampled targets of the batch, with gradient.
            entropies: (N,) likewise, or None.
            beside: another part of the loss, a scalar with gradient, which the caller counts.
            is_counted: whether this rank adds the loss and the metrics of the batch to its own.
        """
        laid_out = batch.scatter(logprobs)  # (E, T)
        entropy = None if entropies is None else batch.scatter(entropies)
        if self._old_is_present:
            batch = dataclasses.replace(batch, old_logprobs=laid_out.detach())
        laid_out.retain_grad()
        if units := self._call.units(*batch.units):
            value = self._call(batch, laid_out, entropy, units=units, normalizer=self._normalizer)
        else:  # no valid token, but this rank must take part in the collectives of the backward pass
            value = laid_out.nan_to_num().sum() * 0
        (value if beside is None else value + beside).backward()
        if is_counted:
            entropy_values = None if entropy is None else entropy.detach()
            self._metrics.add(batch, laid_out.detach(), entropy_values, laid_out.grad)
            self.total += value.detach()


class SplitEpisodes:
    """The split episodes of which this rank has rows.

    Args:
        batches: this rank's micro-batches; only those with rows of split episodes are used here.
    """

    def __init__(self, samples: Sequence[Sample], batches: Sequence[MicroBatch], step: StepLoss) -> None:
        self._step = step
        self._gradients: Tensor | None = None  # (2, all sampled targets): for the logprobs, and for the entropies
        self.uses_entropy = False
        """Whether the loss has a gradient with respect to the entropies."""
        self._episodes: list[tuple[MicroBatch, slice, bool]] = []
        parts = [batch for batch in batches if batch.is_part]
        ends = [0, *accumulate(sample.num_targets for sample in samples)] if parts else []
        for index in sorted({sample for part in parts for sample in part.samples}):
            first, end = ends[index], ends[index + 1]
            is_counted = any(bool((part.target_index == first).any()) for part in parts)
            self._episodes.append((_full_batch(samples[index], parts[0]), slice(first, end), is_counted))

    def call_loss(self, values: Tensor) -> None:
        """Call the loss on each of the episodes, and store its gradients for `backward`.

        Args:
            values: (2, number of all sampled targets) logprobs and entropies; 0 outside of split episodes.
        """
        self._gradients = torch.zeros_like(values)
        for episode, targets, is_counted in self._episodes:
            logprobs, entropies = (value[targets].clone().requires_grad_() for value in values)
            self._step.backward(episode.to(values.device), logprobs, entropies, is_counted=is_counted)
            for gradient, leaf in zip(self._gradients, (logprobs, entropies), strict=True):
                if leaf.grad is not None:
                    gradient[targets] = leaf.grad
            self.uses_entropy |= entropies.grad is not None

    def backward(
        self, batch: MicroBatch, logprobs: Tensor, entropies: Tensor | None, *, beside: Tensor | None = None
    ) -> None:
        """Add the gradients of a micro-batch with rows of split episodes; for the arguments see `StepLoss.backward`."""
        assert self._gradients is not None
        of_logprobs, of_entropies = self._gradients[:, batch.target_index]
        values, gradients = [logprobs], [of_logprobs]
        if entropies is not None and self.uses_entropy:
            values, gradients = [*values, entropies], [*gradients, of_entropies]
        if beside is not None:
            values, gradients = [*values, beside], [*gradients, torch.ones_like(beside)]
        torch.autograd.backward(values, gradients)


def _full_batch(sample: Sample, part: MicroBatch) -> MicroBatch:
    """The loss layout of an episode, (1, T). It has the optional values that `part`, and so each micro-batch, has."""
    if part.reference_logprobs is None:
        sample = dataclasses.replace(sample, reference_logprobs=None)
    if part.old_logprobs is None:
        sample = dataclasses.replace(sample, old_logprobs=None)
    sample = dataclasses.replace(sample, teacher_ids=None, teacher_logprobs=None)
    (batch,) = pack([sample], max_tokens=sys.maxsize, pack_length=0, pad_id=0)
    return batch
