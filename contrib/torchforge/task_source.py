"""TaskSource: an actor that hands out the tasks of an environment, one after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge_env.core.types import Task
from forge_env.rollout.factory import make
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint


class TaskSource(ForgeActor):
    """Hands out every task in order, and starts again after the last.

    Args:
        env: a registered name, or a "module:Class".
        options: of the environment.
        split: "train" or "test".
        count: distinct tasks.
        seed: of the order, and of generated tasks.
    """

    def __init__(
        self,
        *,
        env: str,
        options: Mapping[str, Any] | None = None,
        split: str = "train",
        count: int = 4096,
        seed: int = 0,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self._env, self._options = env, dict(options or {})
        self._split, self._count, self._seed = split, count, seed
        self._next = 0

    async def on_start(self) -> None:
        self._tasks = make(self._env, **self._options).tasks(self._split, count=self._count, seed=self._seed)

    @concurrent_endpoint
    async def task(self) -> Task:
        task = self._tasks[self._next % len(self._tasks)]
        self._next += 1
        return task

    @concurrent_endpoint
    async def sample(self) -> tuple[str, Any]:
        task = self._tasks[self._next % len(self._tasks)]
        self._next += 1
        return "\n\n".join(str(message.get("content") or "") for message in task.prompt), task.target
