"""All losses by one import path; each is defined in the file of its algorithm.

    from trainers.losses import GRPOLoss, SFTLoss
    python -m trainers.grpo --loss trainers.losses:SimpleGRPOLoss

The trainer passes whichever of these tensors a loss names: `logprobs, generator_logprobs, reference_logprobs,
loss_mask, entropy` of shape (episodes, tokens), `advantages` of shape (episodes, 1), and `normalizer`, a scalar.
A loss given a `normalizer` returns a sum over it, so that micro-batches and ranks simply add up; without one it
returns the mean over its own input. `normalizer_unit` says what is counted: valid tokens, or episodes that have any.

In the formulas r = exp(logprobs - generator_logprobs) is the importance ratio against the policy that really sampled,
A the advantage, sg(.) stops the gradient, and the loss is what is minimised. Settings that all losses share (`beta, kl,
entropy_coef, aggregation, correction, ...`) are those of `PolicyLoss` in trainers/objective/loss_base.py; the
arithmetic is in trainers/objective/loss_terms.py.

Masked positions may hold anything, NaN and inf too: they are replaced before any arithmetic, because 0 * NaN is NaN
both in the value and in the gradient.
"""

from __future__ import annotations

from trainers.cispo import CISPOLoss
from trainers.dapo import DAPOLoss
from trainers.grpo import GRPOLoss
from trainers.gspo import GSPOLoss
from trainers.objective.loss_base import ClippedLoss, PolicyLoss, RatioLoss
from trainers.objective.plain_losses import SFTLoss, SimpleGRPOLoss
from trainers.reinforce import ReinforceLoss
from trainers.sapo import SAPOLoss

__all__ = [
    "CISPOLoss",
    "ClippedLoss",
    "DAPOLoss",
    "GRPOLoss",
    "GSPOLoss",
    "PolicyLoss",
    "RatioLoss",
    "ReinforceLoss",
    "SAPOLoss",
    "SFTLoss",
    "SimpleGRPOLoss",
]
