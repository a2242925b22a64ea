"""Which task of an environment the next prompt has: each in turn, or rather those that teach the policy something.

Every sampler goes through one endless sequence: pass after pass over the training tasks, each shuffled anew. The order
of a pass depends on the run's seed and the number of the pass only. `uniform` takes every task of a pass. `pools` and
`window` take a task with a chance that follows how often the policy has solved it. No chance is 0: every task returns.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from forge_env.core.types import Task

Pool = Literal["unseen", "hard", "mixed", "easy"]
SMALL_SHARE = 0.1
"""With `pools`, the part of the prompts that have a task which is never solved, and of those always solved."""
LEAST = 0.02
"""The least chance of a task in a pass."""
_KEPT = {"window": 0.5}
"""What the episodes of a task's earlier visits count at its next one; else only its last visit counts."""
_KEPT_OF_KIND = 0.95
"""What the episodes of a kind's earlier groups count at its next group."""


@dataclass(slots=True, kw_only=True)
class TaskSampler:
    """Chooses the tasks of an environment.

    Example: ``TaskSampler(tasks=tasks, seed=0, by="pools").draw()``
    """

    tasks: Sequence[Task]
    """In the order of the first pass."""
    seed: int
    """Of the run."""
    by: Literal["uniform", "pools", "window"] = "uniform"
    rates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of a profile, by the id of the task: how many attempts solved it, and of how many."""
    visits: Counter[str] = field(default_factory=Counter, init=False)
    """Prompts by the pool that their task was in."""
    _next: int = field(default=0, init=False)  # place in the endless sequence
    _rates: dict[int, list[float]] = field(default_factory=dict, init=False)  # task -> solved episodes, all episodes
    _kinds: dict[str, list[float]] = field(default_factory=dict, init=False)  # the same; "" is all tasks
    _sizes: Counter[Pool] = field(default_factory=Counter, init=False)
    _order: tuple[int, list[int]] = field(default=(0, []), init=False)  # of the present pass

    def __post_init__(self) -> None:
        earlier = ((index, self.rates.get(task.id, ())) for index, task in enumerate(self.tasks))
        self._rates = {index: list(rate) for index, rate in earlier if rate and rate[1]}
        self._order = (0, list(range(len(self.tasks))))
        self._sizes = Counter(map(self.pool, range(len(self.tasks))))

    def draw(self) -> int:
        """The index of the next prompt's task.

        >>> sampler = TaskSampler(tasks=[Task(prompt=(), target=i) for i in range(3)], seed=0)
        >>> [sampler.draw() for _ in range(3)]
        [0, 1, 2]
        """
        while True:
            place, self._next = self._next, self._next + 1
            index = self._index(place)
            chance = 1.0 if self.by == "uniform" else self.chance(index)
            if chance >= 1 or random.Random(f"{self.seed}/sampler/{place}").random() < chance:
                self.visits[self.pool(index)] += 1
                return index

    def observe(self, index: int, successes: int, episodes: int) -> None:
        """Take note of a task's group: how many of its episodes have a reward, and how many of them are solved."""
        if not episodes:
            return
        self._sizes[self.pool(index)] -= 1
        new = (successes, episodes)
        self._rates[index] = _add(self._rates.get(index), new, decay=_KEPT.get(self.by, 0.0))
        for kind in {"", self.tasks[index].kind}:
            self._kinds[kind] = _add(self._kinds.get(kind), new, decay=_KEPT_OF_KIND)
        self._sizes[self.pool(index)] += 1

    def pool(self, index: int) -> Pool:
        """Whether a task is unseen, or was never, now and then, or always solved, as far as its visits count."""
        if index not in self._rates:
            return "unseen"
        successes, episodes = self._rates[index]
        return "hard" if successes < 0.5 else "easy" if episodes - successes < 0.5 else "mixed"

    def chance(self, index: int) -> float:
        """The probability that `pools` or `window` takes a task in a pass, from `LEAST` to 1.

        With `window` it is 4 p (1 - p), with the estimate p of the task's rate. With `pools` it is 1 for unseen and
        mixed tasks. All hard tasks together get their `SMALL_SHARE`, and so do all easy ones.
        """
        if self.by == "window":
            rate = self._rate(index)
            return max(LEAST, 4 * rate * (1 - rate))
        if (pool := self.pool(index)) in ("unseen", "mixed"):
            return 1.0
        others = (self._sizes["unseen"] + self._sizes["mixed"]) / (1 - 2 * SMALL_SHARE)
        return min(1.0, max(LEAST, SMALL_SHARE * others / self._sizes[pool]))

    def _rate(self, index: int) -> float:
        """A task's estimated rate. Its kind's rate counts as one episode, and so do all tasks in the kind's."""
        rate, kind = 0.5, self.tasks[index].kind
        counts = [self._kinds.get(""), self._kinds.get(kind) if kind else None, self._rates.get(index)]
        for successes, episodes in filter(None, counts):
            rate = (successes + rate) / (episodes + 1)
        return rate

    def _index(self, place: int) -> int:
        number, of_pass = divmod(place, len(self.tasks))
        if self._order[0] != number:
            order = list(range(len(self.tasks)))
            if number:
                random.Random(f"{self.seed}/tasks/{number}").shuffle(order)
            self._order = (number, order)
        return self._order[1][of_pass]

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides later draws, and the visits, as JSON."""
        rows = [[index, *counts] for index, counts in self._rates.items()]
        return {"next": self._next, "seen": rows, "kinds": dict(self._kinds), "visits": dict(self.visits)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict`: the draws go on as they would have."""
        self._next, self.visits = state["next"], Counter(state["visits"])
        self._rates = {index: counts for index, *counts in state["seen"]}
        self._kinds = {kind: list(counts) for kind, counts in state["kinds"].items()}
        self._sizes = Counter(map(self.pool, range(len(self.tasks))))


def _add(before: Sequence[float] | None, new: Sequence[float], *, decay: float) -> list[float]:
    return [decay * old + count for old, count in zip(before or (0.0, 0.0), new, strict=True)]
