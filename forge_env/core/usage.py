"""What models beside the policy use, the one that plays a user and a judge: tokens, requests, and cost with prices.

`record_usage` adds a call to the running episode: `Episode.info["model_calls"]` holds the sums by role, for example
``{"user": {"calls": 4, "requests": 4, "retries": 0, "prompt_tokens": 812, "completion_tokens": 90, "cost": 0.0004}}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from forge_env.core.errors import UserError

Role = Literal["user", "judge"]
ROLES: tuple[Role, ...] = ("user", "judge")
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


@dataclass(slots=True)
class Usage:
    """Tokens and requests, summed over several requests; the token counts are the endpoint's."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0
    """Requests sent, retries included."""
    retries: int = 0
    spent: float | None = None
    """Cost in the currency of the client's prices; None if no request had prices."""

    def add(self, other: Usage) -> None:
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.requests += other.requests
        self.retries += other.retries
        if other.spent is not None:
            self.spent = (self.spent or 0.0) + other.spent

    def cost(self, *, prompt: float, completion: float) -> float:
        """Return the cost of the tokens, from prices per million tokens."""
        return Prices(prompt=prompt, completion=completion).cost(self.prompt_tokens, self.completion_tokens)


def record_usage(role: Role, usage: Usage, *, calls: int = 1, cached: int = 0) -> None:
    """Add what a model has used to the running episode. Without one, nothing is recorded.

    Args:
        cached: answers that were known, so that the model was not asked.
    """
    info = recording.get()
    if info is None:
        return
    of_role = info.setdefault(INFO_KEY, {}).setdefault(role, {})
    counts: dict[str, float] = {
        "calls": calls,
        "requests": usage.requests,
        "retries": usage.retries,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        **({"cached": cached} if cached else {}),
        **({} if usage.spent is None else {"cost": usage.spent}),
    }
    for name, count in counts.items():
        of_role[name] = of_role.get(name, 0) + count


def set_usage(sums: Mapping[str, Mapping[str, float]]) -> None:
    """Set the sums by role of the running episode, which were recorded where its environment runs."""
    info = recording.get()
    if info is not None:
        info[INFO_KEY] = {role: dict(counts) for role, counts in sums.items()}


recording: ContextVar[dict[str, Any] | None] = ContextVar("model_calls", default=None)
"""The info of the episode that runs in this context, also in the tasks and threads that it starts."""
