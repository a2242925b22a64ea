"""The methods of one instance never overlap, whoever is cancelled or runs out of time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.tools import reward, tool
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.threads import invoke
from tests.helpers.scripts import calls, in_order, says
from tests.helpers.waiting import until

DEADLINE_S, LIMIT_S, MOMENT_S = 60.0, 1.0, 0.1
TASK = Task(prompt=({"role": "user", "content": "Begin."},))
AGENT = in_order(calls(("look", {})), says("a question"))


class Recorded(ToolEnv):
    """One of its methods blocks in a C call until somebody writes to a pipe."""

    def __init__(self, *, part: str, pipe: int, note: Callable[[str], None]) -> None:
        super().__init__()
        self.part, self.pipe, self.note = part, pipe, note
        self.meet("constructor")

    def meet(self, part: str) -> None:
        if part == self.part:
            self.note(f"{part} begins")
            os.read(self.pipe, 1)
            self.note(f"{part} ends")

    def setup(self) -> None:
        self.meet("setup")

    @tool
    def look(self) -> None:
        """Look."""
        self.meet("tool")

    @reward
    def right(self, answer: str) -> float:
        self.meet("reward")
        return 1.0

    def success(self, reward: float) -> bool:
        self.meet("success")
        return True

    async def close(self) -> None:
        self.note("close")


class CoroutineSetup(Recorded):
    """Its coroutine calls a plain function, as environments of forge_env do."""

    async def setup(self) -> None:  # type: ignore[override]
        await invoke(self.meet, "setup")


class ToThread(Recorded):
    """Its coroutines wait for threads of asyncio."""

    async def setup(self) -> None:  # type: ignore[override]
        await asyncio.to_thread(self.meet, "setup")

    @tool
    async def look(self) -> None:
        """Look."""
        await asyncio.to_thread(self.meet, "tool")

    @reward
    async def right(self, answer: str) -> float:
        return await asyncio.to_thread(super().right, answer)


class Overlapping(Recorded):
    allows_overlap = True


class Opened:
    """An environment whose one method blocks, and what it has noted."""

    def __init__(self, kind: type[Recorded], part: str) -> None:
        self.ends, self.notes = os.pipe(), list[str]()
        self.begins, self.both = f"{part} begins", [f"{part} begins", f"{part} ends"]
        self.factory = EnvFactory(kind, part=part, pipe=self.ends[0], note=self.notes.append)

    def __enter__(self) -> Opened:
        return self

    def go_on(self) -> None:
        os.write(self.ends[1], b"x")

    def __exit__(self, *_: object) -> None:
        for end in self.ends:
            os.close(end)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        *((Recorded, part) for part in ("constructor", "setup", "tool", "reward")),
        (CoroutineSetup, "setup"),
        *((ToThread, part) for part in ("setup", "tool", "reward")),
        *((Overlapping, part) for part in ("setup", "tool")),
    ],
)
async def test_close_waits_for_the_method_whose_episode_was_cancelled(kind: type[Recorded], part: str) -> None:
    await close_waits(kind, part)


async def close_waits(kind: type[Recorded], part: str) -> None:
    with Opened(kind, part) as opened:
        async with opened.factory as factory:
            task = asyncio.create_task(run_episode(factory, AGENT, TASK, seed=0, episode_id="e"))
            await until(lambda: opened.begins in opened.notes)
            task.cancel()
            await asyncio.wait({task}, timeout=MOMENT_S)
            assert (opened.notes == [opened.begins]) is not kind.allows_overlap, "close does not run beside it"
            opened.go_on()
            with pytest.raises(asyncio.CancelledError):
                await task
        if not kind.allows_overlap:
            assert opened.notes == [*opened.both, "close"], "it ends by itself, and the instance is closed once"


@pytest.mark.parametrize("kind", [Recorded, ToThread])
async def test_a_tool_that_runs_on_keeps_its_slot(kind: type[Recorded]) -> None:
    """The number of concurrent calls is often the number that something outside of the instance bears."""

    class Slot(kind):  # type: ignore[misc, valid-type]
        look = tool(concurrency=1, timeout=MOMENT_S)(kind.look)

    with Opened(Slot, "tool") as opened:
        async with opened.factory as factory:

            def begin(number: int) -> asyncio.Task[Any]:
                play = run_episode(factory, AGENT, TASK, seed=0, episode_id=str(number))
                return asyncio.create_task(play)

            first = begin(0)
            await until(lambda: opened.begins in opened.notes)
            first.cancel()
            second = begin(1)
            await asyncio.wait({first, second}, timeout=2 * MOMENT_S)
            assert opened.notes == [opened.begins]
            for _ in range(2):
                opened.go_on()
            await asyncio.wait({first, second})


async def test_an_episode_that_is_cancelled_again_ends_and_its_instance_is_closed_later() -> None:
    with Opened(Recorded, "setup") as opened:
        async with opened.factory as factory:
            task = asyncio.create_task(run_episode(factory, AGENT, TASK, seed=0, episode_id="e"))
            await until(lambda: opened.begins in opened.notes)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert opened.notes == [opened.begins]
            opened.go_on()
        assert opened.notes == [*opened.both, "close"], "before what the instances share is closed"


async def test_an_episode_out_of_time_is_closed_after_its_step() -> None:
    limits = EpisodeLimits(step_seconds=LIMIT_S)
    with Opened(Recorded, "tool") as opened:
        async with opened.factory as factory:
            play = run_episode(factory, AGENT, TASK, seed=0, episode_id="e", limits=limits)
            task = asyncio.create_task(play)
            await until(lambda: opened.begins in opened.notes)
            episode = await task
            assert (episode.outcome, episode.info["unstopped"]) == (Outcome.ENV_FAULT, ["look"])
            assert opened.notes == [opened.begins]
            opened.go_on()
        assert opened.notes == [opened.begins, "close"], (
            "the tool was told to stop: nothing of it runs after its C call"
        )


@pytest.mark.parametrize("episodes", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_episodes_over_sqlite_that_are_cancelled_at_random_moments(episodes: int, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.forge_env.rollout.cancelled_at_random"]
    done = subprocess.run(
        [*command, str(episodes), str(tmp_path)], capture_output=True, text=True, timeout=10 * DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > episodes / 4 and not list(tmp_path.iterdir())
