"""Advantages of a group's valid members: a baseline, and what the difference is divided by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from forge_env.core.errors import UserError
from forge_env.core.reward_value import are_same, reaches

Baseline = Literal["mean", "leave_one_out", "none"]
Normalization = Literal["none", "group", "batch", "mean"]
Advantages = Callable[[Sequence[float]], list[float]]


def centred(rewards: Sequence[float]) -> list[float]:
    """Dr.GRPO's advantage, R - mean: GRPO's without the standard deviation (arXiv 2503.20783).

    Examples:
        >>> centred([1.0, 0.0])
        [0.5, -0.5]
    """
    if not has_signal(rewards):
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]


def group_relative(
    rewards: Sequence[float], *, std_eps: float = 1e-4, ddof: int = 1, difference: Advantages = centred
) -> list[float]:
    """GRPO's advantage, (R - mean) / (std + eps), over the valid siblings of one group (arXiv 2402.03300, section 4.1).

    The standard deviation is the sample's (divided by n - 1), as TRL (eps 1e-4) and verl (eps 1e-6) compute it.
    `ddof=0` is the population's, as in TorchTitan's recipe. If all members of a group have one reward, all advantages
    are 0: the group teaches nothing. `difference` gives the rewards less their baseline.

    Examples:
        >>> [round(a, 3) for a in group_relative([1.0, 0.0], std_eps=0.0)]
        [0.707, -0.707]
    """
    std = spread(rewards, ddof)
    return [value / (std + std_eps) if std > 0 else 0.0 for value in difference(rewards)]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """RLOO's advantage: R minus the mean of the others (arXiv 2402.14740), which is n / (n - 1) times R - mean.

    Unlike the mean over all, the mean of the others does not depend on R, so the gradient is unbiased.

    Examples:
        >>> leave_one_out([1.0, 0.0, 0.0])
        [1.0, -0.5, -0.5]
    """
    n = len(rewards)
    return [n / (n - 1) * difference for difference in centred(rewards)] if n > 1 else [0.0] * n


def relative_to_mean(rewards: Sequence[float], *, difference: Advantages = centred) -> list[float]:
    """MaxRL's advantage, (R - mean) / mean, for rewards of 0 or more (arXiv 2602.02710).

    It is the gradient of the logarithm of a group's success, where R - mean is that of the success itself. So a task
    that is solved once in n episodes weighs n times as much as a task that is solved always. If no member of a group
    has a reward, all advantages are 0.

    Args:
        difference: the rewards less their baseline.

    Raises:
        UserError: for a reward below 0.

    Examples:
        >>> relative_to_mean([1.0, 0.0, 0.0, 0.0])
        [3.0, -1.0, -1.0, -1.0]
    """
    if not reaches(lowest := min(rewards, default=0.0), 0.0):
        raise UserError(
            f"normalization is 'mean', which needs rewards of 0 or more, and a reward is {lowest:g}: set normalization "
            "to 'group', or give a --reward that is not negative"
        )
    mean = statistics.fmean(rewards or [0.0])
    return [value / mean if mean > 0 else 0.0 for value in difference(rewards)]


def no_baseline(rewards: Sequence[float]) -> list[float]:
    """The rewards themselves."""
    return list(rewards)


def batch_std(rewards: Sequence[float], *, std_eps: float = 1e-4, ddof: int = 1) -> float:
    """With normalization="batch", the divisor of a step's advantages: the std of all its rewards, + eps.

    This is the deviation of the rewards, as in TRL's scale_rewards="batch". REINFORCE++ (arXiv 2501.03262) divides by
    the deviation of the advantages. If all rewards are the same, the divisor is 1.
    """
    std = spread(rewards, ddof)
    return std + std_eps if std > 0 else 1.0


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group teaches anything: its rewards differ by more than rounding."""
    return not are_same(rewards)


BASELINES: dict[Baseline, Advantages] = {"mean": centred, "leave_one_out": leave_one_out, "none": no_baseline}
"""The rewards of a group less their baseline, before any division."""


def make_advantages(
    baseline: Baseline, normalization: Normalization, *, std_eps: float, ddof: int
) -> tuple[Advantages, Callable[[Sequence[float]], float] | None]:
    """The advantage function of a group, and the function that makes a divisor of a step's rewards, or None.

    Raises:
        UserError: for a setting out of range.
    """
    if ddof not in (0, 1) or not 0 <= std_eps < math.inf:
        raise UserError(f"std_ddof is {ddof} and std_eps is {std_eps}; std_ddof is 0 or 1, std_eps is not negative")
    difference = BASELINES[baseline]
    if normalization == "none":
        return difference, None
    if normalization == "mean":
        return partial(relative_to_mean, difference=difference), None
    if normalization == "batch":
        return difference, partial(batch_std, std_eps=std_eps, ddof=ddof)
    return partial(group_relative, std_eps=std_eps, ddof=ddof, difference=difference), None


def spread(rewards: Sequence[float], ddof: int = 0) -> float:
    """The standard deviation of rewards; 0 if they differ by rounding alone."""
    if not has_signal(rewards):
        return 0.0
    return statistics.stdev(rewards) if ddof else statistics.pstdev(rewards)
