"""PromptCost: how long an engine takes to compute one token of a prompt, from the times of its steps."""

from __future__ import annotations

_STEPS = 16  # of one point: a step of a GPU is over one or two calls later, and a long prompt takes several
_SKIPPED = 2  # points: the first steps compile
_LEAST = 8  # points
_WEIGHT = 1 / 32  # of one point in the means
_LEAST_EXPLAINED = 0.1  # share of the variance of the seconds


class PromptCost:
    """Fits a line through the seconds of steps over the prompt tokens that they compute; recent steps count most."""

    def __init__(self) -> None:
        self._points = -_SKIPPED
        self._steps = 0
        self._tokens = 0  # of the point that is not complete
        self._seconds = 0.0
        self._means = [0.0] * 5  # of tokens, seconds, tokens squared, tokens times seconds, seconds squared

    def step(self, tokens: int, seconds: float) -> None:
        """A step took so long, and computed so many tokens of prompts."""
        self._steps += 1
        self._tokens += tokens
        self._seconds += seconds
        if self._steps < _STEPS:
            return
        x, y = self._tokens, self._seconds
        self._steps, self._tokens, self._seconds = 0, 0, 0.0
        self._points += 1
        if self._points > 0:
            weight = max(_WEIGHT, 1 / self._points)
            new = (x, y, x * x, x * y, y * y)
            self._means = [mean + weight * (value - mean) for mean, value in zip(self._means, new, strict=True)]

    @property
    def seconds(self) -> float | None:
        """Of one token; None where there were too few steps, or where their times do not depend on the tokens."""
        x, y, xx, xy, yy = self._means
        tokens, both, seconds = xx - x * x, xy - x * y, yy - y * y
        if self._points < _LEAST or min(tokens / (xx or 1), seconds / (yy or 1)) < 1e-9 or both <= 0:
            return None
        return both / tokens if both * both > _LEAST_EXPLAINED * tokens * seconds else None
