"""What models beside the policy use, the one that plays a user and a judge: tokens, requests, and cost with prices.

`Episode.info["model_calls"]` holds the sums by role, for example
``{"user": {"calls": 4, "requests": 4, "retries": 0, "prompt_tokens": 812, "completion_tokens": 90, "cost": 0.0004}}``.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from forge_env.core.errors import UserError

ROLES = ("user", "judge")
INFO_KEY = "model_calls"
"""Key of `Episode.info`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of an endpoint for a million tokens, in any currency."""

    prompt: float = 0.0
    completion: float = 0.0

    def __post_init__(self) -> None:
        for name, price in (("prompt", self.prompt), ("completion", self.completion)):
            if not (math.isfinite(price) and price >= 0):
                raise UserError(f"the price of a million {name} tokens is {price}; it is a number of at least 0")

    def cost(self, prompt: int, completion: int) -> float:
        return (prompt * self.prompt + completion * self.completion) / 1e6


recording: ContextVar[dict[str, Any] | None] = ContextVar("model_calls", default=None)
"""The info of the episode that runs in this context, also in the tasks and threads that it starts."""
