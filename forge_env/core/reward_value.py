"""The definition of a valid reward, for every source: a step, a reward function, a program, a file."""

from __future__ import annotations

from numbers import Real
from typing import Any

from forge_env.core.errors import EnvError

MAX_REWARD = 1e9
"""Largest absolute value of a reward: sums and squares of such numbers stay finite in float32, which trainers use."""


def reward_value(value: Any, source: str) -> float:
    """Return a reward as a float: from a real number, a bool, or a zero-dimensional array or tensor that holds one.

    Args:
        value: the reward.
        source: beginning of the error message, for example "the reward brief returned".

    Raises:
        EnvError: for nan, infinity, text, a complex number, None, and an absolute value above `MAX_REWARD`.
    """
    if type(value) is float and abs(value) <= MAX_REWARD:  # the usual case
        return value
    is_array = getattr(value, "shape", None) == ()
    number = value.item() if is_array else value
    if isinstance(number, (float, Real)) and abs(number) <= MAX_REWARD:  # type: ignore[operator]
        return float(number)
    raise EnvError(f"{source} {_described(value)}; a reward is a finite number, of a size of {MAX_REWARD:g} at most")


def _described(value: Any) -> str:
    try:
        return repr(value)[:80]
    except Exception:  # an integer with too many digits for str(), or an object whose __repr__ raises
        return f"a value of type {type(value).__name__}"
