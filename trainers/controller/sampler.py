"""Which task of an environment the next prompt has: each in turn, or rather those that teach the policy something.

Every sampler goes through one endless sequence: pass after pass over the training tasks, each shuffled anew. The order
of a pass depends on the run's seed and the number of the pass only. `uniform` takes every task of a pass, and `window`
with a chance that follows how often the policy has solved it. No chance is 0: every task returns.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from forge_env.core.types import Task

Pool = Literal["unseen", "hard", "mixed", "easy"]
LEAST = 0.02
"""The least chance of a task in a pass."""
_KEPT = 0.5
"""What the episodes of a task's earlier visits count at its next one."""
_KEPT_OF_KIND = 0.95
"""What the episodes of a kind's earlier groups count at its next group."""


@dataclass(slots=True, kw_only=True)
class TaskSampler:
    """Chooses the tasks of an environment.

    Example: ``TaskSampler(tasks=tasks, seed=0, by="window").draw()``
    """

    tasks: Sequence[Task]
    """In the order of the first pass."""
    seed: int
    """Of the run."""
    by: Literal["uniform", "window"] = "uniform"
    rates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of a profile, by the id of the task: how many attempts solved it, and of how many."""
    visits: Counter[str] = field(default_factory=Counter, init=False)
    """Prompts by the pool that their task was in."""
    _next: int = field(default=0, init=False)  # place in the endless sequence
    _seen: dict[int, list[float]] = field(default_factory=dict, init=False)  # task -> solved episodes, all episodes
    _kinds: dict[str, list[float]] = field(default_factory=dict, init=False)  # the same; "" is all tasks
    _order: tuple[int, list[int]] = field(default=(0, []), init=False)  # of the present pass

    def __post_init__(self) -> None:
        rates = ((index, self.rates.get(task.id, ())) for index, task in enumerate(self.tasks))
        self._seen = {index: list(rate) for index, rate in rates if rate and rate[1]}
        self._order = (0, list(range(len(self.tasks))))

    def draw(self) -> int:
        """The index of the next prompt's task.

        >>> sampler = TaskSampler(tasks=[Task(prompt=(), target=i) for i in range(3)], seed=0)
        >>> [sampler.draw() for _ in range(3)]
        [0, 1, 2]
        """
        while True:
            place, self._next = self._next, self._next + 1
            number, of_pass = divmod(place, len(self.tasks))
            if self._order[0] != number:
                order = list(range(len(self.tasks)))
                if number:
                    random.Random(f"{self.seed}/tasks/{number}").shuffle(order)
                self._order = (number, order)
            index = self._order[1][of_pass]
            chance = 1.0 if self.by == "uniform" else self.chance(index)
            if chance >= 1 or random.Random(f"{self.seed}/sampler/{place}").random() < chance:
                self.visits[self.pool(index)] += 1
                return index

    def observe(self, index: int, solved: int, episodes: int) -> None:
        """Take note of a task's group: how many of its episodes have a reward, and how many of them are solved."""
        if not episodes:
            return
        new = (solved, episodes)
        self._seen[index] = _added(self._seen.get(index), new, kept=_KEPT)
        for kind in {"", self.tasks[index].kind}:
            self._kinds[kind] = _added(self._kinds.get(kind), new, kept=_KEPT_OF_KIND)

    def pool(self, index: int) -> Pool:
        """Whether a task is unseen, or was never, now and then, or always solved, as far as its visits count."""
        if index not in self._seen:
            return "unseen"
        solved, episodes = self._seen[index]
        return "hard" if solved < 0.5 else "easy" if episodes - solved < 0.5 else "mixed"

    def chance(self, index: int) -> float:
        """The probability that `window` takes a task in a pass, from `LEAST` to 1: 4 p (1 - p).

        In the estimate p of the task's rate its kind's rate counts as one episode, and so do all tasks in the kind's.
        """
        rate, kind = 0.5, self.tasks[index].kind
        rates = [self._kinds.get(""), self._kinds.get(kind) if kind else None, self._seen.get(index)]
        for successes, episodes in filter(None, rates):
            rate = (successes + rate) / (episodes + 1)
        return max(LEAST, 4 * rate * (1 - rate))

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides later draws, and the visits, as JSON."""
        seen = [[index, *counts] for index, counts in self._seen.items()]
        return {"next": self._next, "seen": seen, "kinds": dict(self._kinds), "visits": dict(self.visits)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict`: the draws go on as they would have."""
        self._next, self.visits = state["next"], Counter(state["visits"])
        self._seen = {index: counts for index, *counts in state["seen"]}
        self._kinds = {kind: list(counts) for kind, counts in state["kinds"].items()}


def _added(before: Sequence[float] | None, new: Sequence[float], *, kept: float) -> list[float]:
    return [kept * old + count for old, count in zip(before or (0.0, 0.0), new, strict=True)]
