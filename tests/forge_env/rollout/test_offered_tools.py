"""Whether an evaluation with the tools switched off says anything: an instance is asked for its tools."""

from __future__ import annotations

from typing import Any

import pytest

from envs.math import Math
from forge_env.core.env import Env
from forge_env.core.tools import make_tool, tool
from forge_env.core.types import Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import offers_tools
from forge_env.tool_env.tool_env import ToolEnv
from tests.forge_env.rollout.test_rollout import Counter

TASK = Task(prompt=({"role": "user", "content": "2 + 2"},), target="4")
closed: list[Env] = []


class Bare(ToolEnv):
    """Has no tool."""

    def close(self) -> None:
        closed.append(self)


class OfTheTask(Bare):
    """Gets its tool in the episode."""

    def setup(self) -> None:
        def look_up(word: str) -> str:
            """Look a word up."""
            return word

        self.set_tools({"look_up": make_tool(look_up)})


class CannotSwitch(ToolEnv):
    """Has a tool, and a constructor without the option that switches it off."""

    def __init__(self, level: int = 1) -> None:
        super().__init__()

    @tool
    def look_up(self, word: str) -> str:
        """Look a word up."""
        return word


class Breaks(Bare):
    def setup(self) -> None:
        raise ValueError("no disk")


@pytest.mark.parametrize(
    ("env_class", "options", "expected"),
    [
        (Math, {}, True),
        (Math, {"calculator": False}, False),
        (Bare, {}, False),
        (OfTheTask, {}, True),
        (CannotSwitch, {}, False),
        (Counter, {}, False),
        (Breaks, {}, True),  # its episodes report the fault
    ],
)
async def test_an_instance_says_whether_it_has_tools(env_class: type[Env], options: Any, expected: bool) -> None:
    closed.clear()
    async with EnvFactory(env_class, **options) as factory:
        assert await offers_tools(factory, TASK, seed=0, env_options={}) is expected
    assert len(closed) == issubclass(env_class, Bare)


async def test_options_of_a_held_out_set_count() -> None:
    async with EnvFactory(Math) as factory:
        assert not await offers_tools(factory, TASK, seed=0, env_options={"calculator": False})
