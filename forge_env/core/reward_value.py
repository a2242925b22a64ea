"""What counts as a reward, wherever one comes from: a step, a reward function, a program, a file."""

from __future__ import annotations

from numbers import Real
from typing import Any

from forge_env.core.errors import EnvError

MAX_REWARD = 1e9
"""Size of the largest reward: sums and squares of such numbers stay finite in float32, in which trainers calculate."""


def reward_value(value: Any, source: str) -> float:
    """Return a reward as a float: a real number, True and False, or an array or tensor of no dimension that holds one.

    Args:
        value: what was given as a reward.
        source: begins the error's sentence, for example "the reward brief returned".

    Raises:
        EnvError: for nan, infinity, text, a complex number, None, and what is larger than `MAX_REWARD`.
    """
    number = value.item() if getattr(value, "shape", None) == () else value
    if isinstance(number, Real) and abs(number) <= MAX_REWARD:  # type: ignore[operator]
        return float(number)
    raise EnvError(f"{source} {_shown(value)}; a reward is a finite number, of a size of {MAX_REWARD:g} at most")


def _shown(value: Any) -> str:
    try:
        return repr(value)[:80]
    except Exception:  # an integer of more digits than Python writes out, or an object's own mistake
        return f"a value of type {type(value).__name__}"
