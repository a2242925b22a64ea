"""The endless sequence of training tasks: pass after pass over the dataset, each shuffled anew.

The order of a pass depends on the run's seed and the number of the pass only. So the number of a prompt determines its
task, also after a resume, and each pass has every task exactly once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from forge_env.core.types import Task


@dataclass(slots=True, kw_only=True)
class TaskOrder:
    """The tasks by the numbers of their prompts."""

    tasks: Sequence[Task]
    """In the order of the first pass."""
    seed: int
    """Of the run."""
    _kept: dict[int, list[int]] = field(default_factory=dict, init=False)

    def task(self, number: int) -> Task:
        """The task of a prompt.

        >>> order = TaskOrder(tasks=[Task(prompt=(), target=i) for i in range(3)], seed=0)
        >>> [order.task(number).target for number in range(3)]
        [0, 1, 2]
        """
        pass_number, place = divmod(number, len(self.tasks))
        return self.tasks[self._order(pass_number)[place] if pass_number else place]

    def _order(self, pass_number: int) -> list[int]:
        """Indices into `tasks`; the last two passes are kept, since prompts of both may be open at once."""
        if pass_number not in self._kept:
            order = list(range(len(self.tasks)))
            random.Random(f"{self.seed}/tasks/{pass_number}").shuffle(order)
            self._kept = {n: kept for n, kept in self._kept.items() if abs(n - pass_number) < 2} | {pass_number: order}
        return self._kept[pass_number]
