"""The definition of a valid reward, for every source: a step, a reward function, a program, a file.

Rewards are sums of floats, which are not exact: 0.7 + 0.2 + 0.1 is below 1. So thresholds and differences have the one
tolerance that is stated here.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

from forge_env.core.errors import EnvError

MAX_REWARD = 1e9
"""Largest absolute value of a reward: sums and squares of such numbers stay finite in float32, which trainers use."""

TOLERANCE = 1e-9
"""Relative to a threshold, or to the largest of some rewards; for thresholds below 1 it is absolute."""
ROUNDING = 1e-12
"""Differences below it are not differences, however small the rewards are: terms of a sum can cancel."""


def reaches(reward: float, threshold: float) -> bool:
    """Whether a reward, or a share, is at least a threshold, but for rounding.

    >>> reaches(0.7 + 0.2 + 0.1, 1.0), reaches(0.999, 1.0)
    (True, False)
    """
    return reward >= threshold - TOLERANCE * max(1.0, abs(threshold))


def is_within(reward: float, low: float, high: float) -> bool:
    """Whether a reward is in a range, but for rounding; nan is not."""
    return reaches(reward, low) and reaches(high, reward)


def are_same(rewards: Sequence[float]) -> bool:
    """Whether rewards differ by no more than rounding; so do none, and one alone.

    >>> are_same([1.0 - 0.1 - 0.1 - 0.1, 0.7]), are_same([0.0, 1e-6])
    (True, False)
    """
    if not rewards:
        return True
    low, high = min(rewards), max(rewards)
    return high - low <= max(TOLERANCE * max(abs(low), abs(high)), ROUNDING)


def reward_value(value: Any, source: str) -> float:
    """Return a reward as a float: from a real number, a bool, or a zero-dimensional array or tensor that holds one.

    Args:
        source: beginning of the error message, for example "the reward brief returned".
    """
    if type(value) is float and abs(value) <= MAX_REWARD:  # the usual case
        return value
    is_array = getattr(value, "shape", None) == ()
    number = value.item() if is_array else value
    if isinstance(number, (float, Real)) and abs(number) <= MAX_REWARD:  # type: ignore[operator]
        return float(number)
    raise EnvError(f"{source} {_describe(value)}; a reward is a finite number, of a size of {MAX_REWARD:g} at most")


def _describe(value: Any) -> str:
    try:
        return repr(value)[:80]
    except Exception:  # an integer with too many digits for str(), or an object with a __repr__ that raises
        return f"a value of type {type(value).__name__}"
