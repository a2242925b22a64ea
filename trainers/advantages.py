"""Advantages of a group's valid members."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def group_relative(rewards: Sequence[float], *, std_eps: float = 1e-4) -> list[float]:
    """GRPO's advantage, (R - mean) / (std + eps), over the valid siblings of one group (arXiv 2402.03300, section 4.1).

    The standard deviation is the sample's (divided by n - 1), as TRL and verl compute it. A group whose members all
    have one reward gets zeros: it teaches nothing.

    >>> [round(a, 3) for a in group_relative([1.0, 0.0], std_eps=0.0)]
    [0.707, -0.707]
    """
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(reward - mean) / (std + std_eps) if std > 0 else 0.0 for reward in rewards]
