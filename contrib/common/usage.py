"""Adds what a model beside the policy has used to the record of the running episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forge_env.core.usage import INFO_KEY, Prices, recording


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


def record_usage(role: str, usage: Usage, *, calls: int = 1, cached: int = 0) -> None:
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
