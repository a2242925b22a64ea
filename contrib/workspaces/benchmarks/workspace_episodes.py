"""What an episode in a workspace costs without a model: bug_fix, four tool calls, a verdict in a fresh workspace.

python -m contrib.workspaces.benchmarks.workspace_episodes [--episodes 40] [--json FILE]

total      from the reset to the reward: two looks with the shell, an edit, pytest, the verdict
programs   the part in which programs of the episode ran: commands of the shell, and the process that grades
ours       the rest: two workspaces, the shell's start, the edit, the rollout loop
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from agents.scripted import ScriptedAgent
from benchmarks.machine import describe
from contrib.workspaces.bug_fix.env import BugFix
from envs.messages import call
from forge_env import EnvFactory, run_episode
from forge_env.core.types import Message

PROGRAMS: list[float] = []
"""Seconds of the programs of the present episode."""


class Timed:
    """A workspace or a shell whose commands are timed; all else is that of the original."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    async def open_shell(self, **options: Any) -> Timed:
        return Timed(await self._original.open_shell(**options))

    async def run(self, command: str, **options: Any) -> Any:
        result = await self._original.run(command, **options)
        PROGRAMS.append(result.wall_s)
        return result

    async def exec(self, command: Any, **options: Any) -> Any:
        result = await self._original.exec(command, **options)
        if command[0].endswith("python3"):
            PROGRAMS.append(result.wall_s)
        return result


class TimedBugFix(BugFix):
    """bug_fix with timed workspaces."""

    async def open_fresh(self, *arguments: Any, **options: Any) -> Any:
        return Timed(await super().open_fresh(*arguments, **options))


def four_calls(messages: list[Message]) -> Message:
    """The expert, with a look around first, so that there are four calls."""
    at = next((n for n, message in enumerate(messages) if message["role"] == "assistant"), None)
    if at is None:
        return call("shell", command="ls")
    return BugFix.expert([*messages[:at], *messages[at + 2 :]])


async def measure(episodes: int) -> dict[str, Any]:
    rows: list[tuple[float, float]] = []
    async with EnvFactory(TimedBugFix) as factory:
        for number, task in enumerate(factory.tasks("train", count=episodes + 2)):
            PROGRAMS.clear()
            begin = time.perf_counter()
            episode = await run_episode(
                factory,
                ScriptedAgent(four_calls),
                task,
                seed=0,
                episode_id=str(number),
                limits=factory.episode_limits(),
            )
            total = time.perf_counter() - begin
            assert episode.reward == 1.0 and len(episode.turns) == 5, episode
            rows.append((total, sum(PROGRAMS)))
    rows = rows[2:]  # the first ones make the image and the warm workspaces
    times = {"total": [r[0] for r in rows], "programs": [r[1] for r in rows], "ours": [r[0] - r[1] for r in rows]}
    return {
        f"{name}_{label}_ms": 1000 * value
        for name, values in times.items()
        for label, value in (("p50", statistics.median(values)), ("p90", statistics.quantiles(values, n=10)[-1]))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    options = parser.parse_args()
    load = os.getloadavg()
    result = asyncio.run(measure(options.episodes))
    machine = {**describe(), "load_before": load, "load_after": os.getloadavg()}
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "result": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
