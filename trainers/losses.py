"""All losses by one import path; each is defined in the file of its algorithm.

    from trainers.losses import GRPOLoss, SFTLoss
    python -m trainers.grpo --loss trainers.losses:SimpleGRPOLoss

The trainer passes the tensors that a loss names: `logprobs, generator_logprobs, reference_logprobs, loss_mask, entropy`
of shape (episodes, tokens), `advantages` of shape (episodes, 1), and `normalizer`, a scalar. A loss that names
`normalizer` returns a sum divided by it, so micro-batches and ranks simply add up. Any other loss returns the mean over
its own input. `normalizer_unit` says what is counted: valid tokens, or episodes with valid tokens.

In the formulas r = exp(logprobs - generator_logprobs) is the importance ratio against the policy that really sampled, A
the advantage, sg(.) stops the gradient, and the loss is what is minimised. `PolicyLoss` in
trainers/objective/loss_base.py explains the settings that all losses share (`beta, kl, entropy_coef, aggregation,
correction, ...`); trainers/objective/loss_terms.py has the arithmetic.

Masked positions may hold anything, NaN and inf too. They are replaced before any arithmetic, because 0 * NaN is NaN, in
the value and in the gradient.
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
