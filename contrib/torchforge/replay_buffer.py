"""ReplayBuffer: a bounded queue of episodes between samplers and a trainer, for training loops of your own."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint


class ReplayBuffer(ForgeActor):
    """Keeps episodes in the order of their arrival, and returns each one once.

    It holds `capacity` episodes. `add` waits while it is full, so that nothing is lost and sampling cannot run ahead of
    training. (The trainers of this library do not use it: trainers/controller/ledger.py and schedule.py do the same for
    groups, with a bound on staleness.)

    Args:
        batch_size: episodes that `sample` returns.
        capacity: episodes that are kept; 4 batches by default.

    Raises:
        UserError: for numbers out of range.
    """

    def __init__(self, *, batch_size: int, capacity: int = 0, **base: Any) -> None:
        super().__init__(**base)
        self._batch_size = batch_size
        self._capacity = capacity or 4 * batch_size
        self._episodes: deque[Episode] = deque()
        self._change = asyncio.Condition()

    async def on_start(self) -> None:
        if not 1 <= self._batch_size <= self._capacity:
            raise UserError(
                f"batch_size is {self._batch_size} and capacity {self._capacity}: a batch has an episode at least, and "
                "fits into the buffer"
            )

    @concurrent_endpoint
    async def add(self, episode: Episode) -> None:
        async with self._change:
            await self._change.wait_for(lambda: len(self._episodes) < self._capacity)
            self._episodes.append(episode)
            self._change.notify_all()

    @concurrent_endpoint
    async def sample(self) -> list[Episode]:
        """Return the oldest `batch_size` episodes, and forget them; waits until there are enough."""
        async with self._change:
            await self._change.wait_for(lambda: len(self._episodes) >= self._batch_size)
            batch = [self._episodes.popleft() for _ in range(self._batch_size)]
            self._change.notify_all()
            return batch

    @concurrent_endpoint
    async def waiting(self) -> int:
        return len(self._episodes)
