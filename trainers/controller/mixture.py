"""Which environment the next prompt is of, so that each has its share of the groups, or of the sampled tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

COUNTED = ("begun", "groups", "tokens")


@dataclass(kw_only=True)
class Mixture:
    """Chooses the environment that is furthest behind its weight.

    It counts the prompts that have begun: an environment whose groups are all dropped gets its share and no more, and a
    slow one holds no more of the open groups.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})
    """By the label of the environment; "" is the only one."""
    by: Literal["groups", "tokens"] = "groups"
    """With "tokens" a prompt counts as many tokens as a trainable group of its environment has in the mean."""
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in COUNTED})
    """By environment: prompts that have begun; groups that came back and can be trained on; their sampled tokens."""

    def begin(self) -> tuple[str, int]:
        """Begin a prompt: the label of its environment, and its number among the prompts of this environment, from 0.

        >>> mixture = Mixture(weights={"a": 2.0, "b": 1.0})
        >>> [mixture.begin() for _ in range(4)]
        [('a', 0), ('a', 1), ('b', 0), ('a', 2)]
        """
        counts = self.counts["begun"]

        def place(env: str) -> float:
            weight, size = self.weights[env], self._size(env) if self.by == "tokens" else 1.0
            return (counts[env] + 1) * size / weight if weight else math.inf

        env = min(self.weights, key=place)
        counts[env] += 1
        return env, counts[env] - 1

    def finish(self, env: str, tokens: int) -> None:
        """A group came back that can be trained on, with this number of sampled tokens."""
        self.counts["groups"][env] += 1
        self.counts["tokens"][env] += tokens

    @property
    def metrics(self) -> dict[str, float]:
        """share/LABEL, the part of each environment in the groups that came back, or in their tokens; none for one."""
        counts = self.counts[self.by]
        return {f"share/{env}": counts[env] / max(1, counts.total()) for env in self.weights if env}

    def summary(self) -> dict[str, dict[str, float]]:
        return {
            env: {"weight": weight, **{name: of_env[env] for name, of_env in self.counts.items()}}
            for env, weight in self.weights.items()
        }

    def _size(self, env: str) -> float:
        """The mean tokens of a group; of all environments, as long as none of this one came back."""
        groups, tokens = self.counts["groups"], self.counts["tokens"]
        if groups[env]:
            return max(1.0, tokens[env] / groups[env])
        return max(1.0, tokens.total() / groups.total()) if groups.total() else 1.0
