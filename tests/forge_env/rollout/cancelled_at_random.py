"""A program: episodes over SQLite and a file that are cancelled at random moments, some of them twice.

    python -m tests.forge_env.rollout.cancelled_at_random EPISODES FOLDER

It prints the number of episodes that were cancelled. The files of its environments are in FOLDER.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import tempfile

from forge_env.core.tools import reward, tool
from forge_env.core.types import Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.tool_env import ToolEnv
from tests.helpers.scripts import calls, in_order, says

AT_ONCE, SECONDS = 16, 0.12
TASK = Task(prompt=({"role": "user", "content": "How many?"},))


class Shop(ToolEnv):
    """Its queries take some milliseconds, in C calls."""

    def setup(self) -> None:
        self.file, self.path = tempfile.mkstemp()
        self.db = sqlite3.connect(self.path, check_same_thread=False)
        self.db.execute("CREATE TABLE goods (price INTEGER)")
        self.db.executemany("INSERT INTO goods VALUES (?)", ((price,) for price in range(2000)))
        self.db.commit()

    @tool
    def pairs(self, above: int) -> int:
        """Count pairs."""
        query = "SELECT count(*) FROM goods a, goods b WHERE a.price > ? AND a.price < b.price"
        return int(self.db.execute(query, (above,)).fetchone()[0])

    @reward
    def right(self, answer: str) -> float:
        return float(self.db.execute("SELECT count(*) FROM goods").fetchone()[0])

    def close(self) -> None:
        if hasattr(self, "db"):
            self.db.close()
        if hasattr(self, "file"):
            os.close(self.file)
            os.unlink(self.path)
            del self.file


async def main(episodes: int) -> int:
    """Run them; returns how many were cancelled."""
    rng, slots = random.Random(0), asyncio.Semaphore(AT_ONCE)
    agent = in_order(*[calls(("pairs", {"above": 1990}))] * 4, says("many"))

    async def cancelled(number: int) -> bool:
        async with slots:
            seconds, again = rng.random() * SECONDS, rng.random() * SECONDS / 10
            episode = run_episode(factory, agent, TASK, seed=number, episode_id=str(number))
            task = asyncio.create_task(episode)
            await asyncio.wait({task}, timeout=seconds)
            task.cancel()
            await asyncio.wait({task}, timeout=again)
            if number % 3 == 0:
                task.cancel()
            await asyncio.wait({task})
            return task.cancelled()

    async with EnvFactory(Shop) as factory:
        return sum(await asyncio.gather(*map(cancelled, range(episodes))))


if __name__ == "__main__":
    tempfile.tempdir = sys.argv[2]
    print(asyncio.run(main(int(sys.argv[1]))))
