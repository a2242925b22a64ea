"""What all policy-gradient losses share: their settings, and the frame around an algorithm's policy term."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_args

from forge_env.core.errors import UserError, nearest
from trainers.objective.loss_terms import (
    KL,
    Aggregation,
    Correction,
    aggregate,
    correction_inside,
    correction_weight,
    keep,
    kl_estimate,
    log_ratio,
    per_token,
    valid_tokens,
)

if TYPE_CHECKING:
    from torch import Tensor


class LossOptions(TypedDict, total=False):
    """Settings that every policy-gradient loss takes beside `beta` and `aggregation`; `PolicyLoss` explains them."""

    kl: KL
    entropy_coef: float
    constant: float
    correction: Correction
    correction_low: float
    correction_high: float


TORCHFORGE_NAMES = {"padding_mask": "loss_mask", "ref_logprobs": "reference_logprobs"}
"""torchforge's names of tensors, and our names: a loss may be written and called with both."""


class TensorLoss:
    """A loss without weights, called with its tensors by name, ours or torchforge's; subclasses write `forward`."""

    forward: Callable[..., Tensor]

    def __call__(self, *args: Any, **tensors: Any) -> Any:
        names = inspect.signature(self.forward).parameters  # a user's subclass may have torchforge's names
        by_name = {name if name in names else TORCHFORGE_NAMES.get(name, name): t for name, t in tensors.items()}
        return self.forward(*args, **by_name)


class PolicyLoss(TensorLoss):
    """A policy-gradient loss: `sum of w * policy term + beta * KL - entropy_coef * entropy`, aggregated.

    Args:
        beta: weight of the KL penalty against the reference model; 0 turns it off.
        aggregation: "token", "sequence" or "constant", see `trainers.objective.loss_terms.aggregate`. An episode
            without a valid token counts in none of them, as in verl; TRL keeps such a row in its mean over rows.
        kl: estimator of the KL penalty, "k1", "k2" or "k3", see `trainers.objective.loss_terms.kl_estimate`. The
            penalty is neither weighted by the importance ratio nor corrected, as in TRL and verl.
        entropy_coef: weight of the entropy bonus. The bonus is aggregated as the loss is, as in verl. TRL takes the
            mean over tokens for every loss, as here with aggregation="token".
        constant: with aggregation="constant", the divisor of an episode's sum of token losses. TRL's dr_grpo is
            constant=max_completion_length. verl's seq-mean-token-sum-norm does not divide by the number of episodes.
        correction: what to do with a token if its ratio of trainer to engine is out of [correction_low,
            correction_high]. "mask" leaves the token out (IcePop), "truncate" bounds its weight (TIS). "sequence_mask"
            and "sequence_truncate" do the same with the product over the episode. "none" does nothing. The token still
            counts in the denominators.
        correction_high: see `correction`. The default, [1e-4, 100], excludes only what rounding cannot explain. Usual
            narrower bounds: 0 to 2 for "truncate" (verl, slime), 0.5 to 5 for "mask" (IcePop), 0 to 3 for
            "sequence_mask" (TRL).

    Without `old_logprobs` the ratio of the loss is trainer / engine already. The correction is then a factor of 1
    within its bounds, and no second ratio. `old_logprobs` are the trainer's logprobs before a window of steps. With
    them the ratio is new / old, and the correction weighs by old / engine: the decoupled objective, as TRL and verl
    compute it.
    """

    policy_term_vanishes = False
    """True if the policy term, and so its gradient, is 0 for tokens with advantage 0. A subclass sets it."""

    def __init__(
        self,
        *,
        aggregation: Aggregation,
        beta: float = 0.0,
        kl: KL = "k3",
        entropy_coef: float = 0.0,
        constant: float = 1.0,
        correction: Correction = "mask",
        correction_low: float = 1e-4,
        correction_high: float = 100.0,
    ) -> None:
        check_choice("aggregation", aggregation, get_args(Aggregation))
        check_choice("kl", kl, get_args(KL))
        check_choice("correction", correction, get_args(Correction))
        check_range("beta", beta, low=0.0)
        if not constant > 0:
            raise UserError(f"constant={constant} must be above 0: it is what token sums are divided by.")
        if not 0 <= correction_low <= 1 <= correction_high:
            raise UserError(
                f"correction_low={correction_low}, correction_high={correction_high}: the bounds must have 1, which is "
                "no mismatch, between them, and not be negative."
            )
        self.aggregation = aggregation
        self.beta = beta
        self.kl = kl
        self.entropy_coef = entropy_coef
        self.constant = constant
        self.correction = correction
        self.correction_low = correction_low
        self.correction_high = correction_high
        self.normalizer_unit = "tokens" if aggregation == "token" else "episodes"

    @property
    def unused_tensors(self) -> frozenset[str]:
        """Tensors that `forward` names and does not use. The entropy is costly, so it is computed only if it is
        used."""
        return frozenset() if self.entropy_coef else frozenset({"entropy"})

    @property
    def skips_idle(self) -> bool:
        """True if zero-advantage episodes only count in the denominator. The trainer then skips their forward pass."""
        return self.policy_term_vanishes and not self.beta and not self.entropy_coef

    def _total(
        self,
        policy: Tensor,
        mask: Tensor,
        logprobs: Tensor,
        reference_logprobs: Tensor | None,
        entropy: Tensor | None,
        normalizer: Tensor | None,
    ) -> Tensor:
        """Add the KL penalty and the entropy bonus to the policy term, (E, T), and aggregate."""
        if self.beta > 0:
            if reference_logprobs is None:
                raise UserError(f"beta={self.beta} needs reference_logprobs: give a reference model, or set beta to 0.")
            difference = log_ratio(logprobs, reference_logprobs, mask)
            policy = policy + self.beta * kl_estimate(difference, self.kl)
        if self.entropy_coef:
            if entropy is None:
                raise UserError(f"entropy_coef={self.entropy_coef} needs the entropy of every token: pass entropy=.")
            policy = policy - self.entropy_coef * keep(entropy, mask)
        return aggregate(keep(policy, mask), mask, self.aggregation, constant=self.constant, normalizer=normalizer)

    def _weight(self, logprobs: Tensor, generator: Tensor, old: Tensor | None, mask: Tensor) -> Tensor:
        """The correction's factor, detached: (E, T) or (E, 1)."""
        bounds = self.correction, self.correction_low, self.correction_high
        if old is None:
            return correction_inside(log_ratio(logprobs, generator, mask), *bounds)
        return correction_weight(log_ratio(old, generator, mask), *bounds)


class RatioLoss(PolicyLoss):
    """A loss with a policy term of the importance ratio; subclasses write `policy_term`."""

    def policy_term(self, log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        """Per-token loss to minimise, (E, T), from tensors of the same shape that are 0 at masked tokens."""
        raise NotImplementedError

    def forward(
        self,
        logprobs: Tensor,
        generator_logprobs: Tensor,
        advantages: Tensor,
        loss_mask: Tensor,
        reference_logprobs: Tensor | None = None,
        normalizer: Tensor | None = None,
        entropy: Tensor | None = None,
        old_logprobs: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss.

        Args:
            logprobs: (episodes, tokens) of the model being trained, with gradient.
            generator_logprobs: (episodes, tokens) of the policy that sampled. A token with a value that is not finite
                is left out of the sum and the count.
            advantages: (episodes,), (episodes, 1) or (episodes, tokens).
            loss_mask: (episodes, tokens) bool, True on the tokens to learn from.
            reference_logprobs: (episodes, tokens) of the reference model; needed when beta > 0.
            normalizer: what to divide the sum by; None for the number of episodes or tokens given.
            entropy: (episodes, tokens) of the model being trained, with gradient; needed when entropy_coef is not 0.
            old_logprobs: (episodes, tokens) of the trainer's weights at the last update of the engine; the ratio is
                then taken against them.
        """
        mask = valid_tokens(loss_mask, generator_logprobs)
        old = generator_logprobs if old_logprobs is None else old_logprobs
        ratio = log_ratio(logprobs, old, mask)
        policy = self.policy_term(ratio, keep(logprobs, mask), per_token(advantages, mask), mask)
        policy = policy * self._weight(logprobs, generator_logprobs, old_logprobs, mask)
        return self._total(policy, mask, logprobs, reference_logprobs, entropy, normalizer)

    def clipped(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """For the metrics: True if the ratio is below its lower bound, or above its upper bound: two (E, T) bools."""
        none = mask & False
        return none, none


class ClippedLoss(RatioLoss):
    """The clipped surrogate, per token -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A); `ratio` gives r.

    Args:
        clip_low: how far below 1 the ratio may go before it is clipped, within [0, 1].
        clip_high: how far above 1.
        beta: weight of the KL penalty against the reference model; 0 turns it off.
        dual_clip: bounds the loss of a negative advantage at -dual_clip * A, above 1 + clip_high (arXiv 1912.09729;
            verl 3.0, TRL's `delta`); None does not.
    """

    policy_term_vanishes = True

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
        super().__init__(beta=beta, aggregation=aggregation, **options)
        check_range("clip_low", clip_low, low=0.0, high=1.0)
        check_range("clip_high", clip_high, low=0.0)
        if dual_clip is not None and not dual_clip > 1 + clip_high:
            raise UserError(f"dual_clip={dual_clip} must be above 1 + clip_high={1 + clip_high:g}, or None for off.")
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.dual_clip = dual_clip

    def policy_term(self, log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        ratio = self.ratio(log_ratio, logprobs, mask)
        bounded_ratio = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        if self.dual_clip is not None:  # it is above both bounds of the clip: nothing changes if A > 0
            ratio = ratio.clamp(max=self.dual_clip)
        return -(ratio * advantages).minimum(bounded_ratio * advantages)

    def ratio(self, log_ratio: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
        """The ratio that is clipped, (E, T): each token's own."""
        return log_ratio.exp()

    def clipped(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """True if the gradient vanishes: the ratio is below the range with A < 0, or above it with A > 0."""
        ratio = self.ratio(log_ratio, log_ratio, mask)
        low = (ratio < 1 - self.clip_low) & (advantages < 0)
        return low & mask, (ratio > 1 + self.clip_high) & (advantages > 0) & mask


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise UserError unless the value is one of the choices."""
    if value not in choices:
        raise UserError(f"{name}={value!r} is not known. {nearest(str(value), choices)}")


def check_range(name: str, value: float, *, low: float, high: float = float("inf")) -> None:
    """Raise UserError unless low <= value <= high."""
    if not low <= value <= high:
        bounds = f"must not be below {low:g}" if high == float("inf") else f"must lie in [{low:g}, {high:g}]"
        raise UserError(f"{name}={value} {bounds}.")
