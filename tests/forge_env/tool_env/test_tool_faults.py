"""A tool that never works is seen in what an evaluation says: its episodes do not go from the score without a word."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import SandboxError, ServiceError
from forge_env.core.tools import make_tool, reward, tool
from forge_env.core.types import EpisodeLimits, Outcome, Task, ToolCall, ToolFailure, ToolUse
from forge_env.evaluation.metrics import faulted_tool, tool_figures, tool_metrics, unstopped_warnings
from forge_env.rollout import env_calls
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.tool_env import Toolbox, ToolEnv
from tests.helpers.scripts import calls, in_order, says
from tests.helpers.waiting import DEADLINE_S


class Blocks(ToolEnv):
    """Its tool blocks in a C call that Python cannot interrupt."""

    def __init__(self, wait: int, closed: Callable[[str], None]) -> None:
        super().__init__()
        self.wait, self.closed = wait, closed

    @tool(timeout=0.05)
    def query(self) -> str:
        """Wait for an answer."""
        return os.read(self.wait, 1).decode()

    @tool(timeout=0.05)
    def loops(self) -> None:
        """Run until Python interrupts it."""
        while True:
            pass

    @reward
    def none(self, answer: str) -> float:
        return 0.0

    def close(self) -> None:
        self.closed("close")


async def test_a_tool_that_cannot_be_stopped_keeps_its_instance_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_calls, "HELD_SECONDS", 0.05)
    agent = in_order(calls(("loops", {})), calls(("query", {})), calls(("loops", {})), says("x"))
    task = Task(prompt=({"role": "user", "content": "ask"},))
    ends = os.pipe()
    closed: list[str] = []
    async with EnvFactory(Blocks, wait=ends[0], closed=closed.append) as factory:
        limits = EpisodeLimits(max_turns=4, scoring_seconds=0.05)
        episode = await run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)
        assert closed == []
        monkeypatch.setattr(env_calls, "HELD_SECONDS", DEADLINE_S)
        os.write(ends[1], b"x")  # the call returns
    assert closed == ["close"], "at the end of the process if not before"
    held = "query still runs, and the methods of an instance never overlap"
    assert [m["content"] for m in episode.messages if m["role"] == "tool"] == [
        "Error: loops took longer than 0.05 s and was stopped.",
        "Error: query did not finish within 0.05 s; it may still run.",
        f"Error: loops was not called within 0.05 s: {held}.",
    ]
    assert [use.error for turn in episode.turns for use in turn.tool_uses] == ["timeout"] * 3
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    assert episode.error == f"scoring took longer than 0.05 s: {held}"
    assert (episode.info["unstopped"], episode.info["close_error"]) == (["query"], f"it is not closed yet: {held}")
    [warning] = unstopped_warnings([episode])
    assert warning.startswith(
        "query of the environment ran on after its time limit in 1 episode: it blocks in a C call"
    )


async def test_the_fault_of_a_tool_names_it_once() -> None:
    error = SandboxError("gone")

    def search(a: int) -> str:
        """Search."""
        raise error

    for _ in range(2):
        with pytest.raises(SandboxError, match="^tool search: gone$"):
            await Toolbox({"search": make_tool(search)}).answer([ToolCall(id="", name="search", arguments={"a": 1})])
    assert str(ServiceError("gone")) == "gone"


async def test_a_failure_that_a_function_returns_is_counted() -> None:
    def search(a: int) -> str:
        """Search."""
        return ToolFailure("Error: nothing", kind="empty")

    call = ToolCall(id="", name="search", arguments={"a": 1})
    [message], [use] = await Toolbox({"search": make_tool(search)}).answer([call])
    assert (message["content"], use.error) == ("Error: nothing", "empty")
    assert type(message["content"]) is str  # it is written down and sent elsewhere, as any text


@pytest.mark.parametrize(
    ("outcome", "error", "name"),
    [
        (Outcome.INFRA_FAULT, "ServiceError: tool search: GET http://x was answered with 500", "search"),
        (Outcome.ENV_FAULT, "tool buy (shop.py:41): KeyError: 'x'", "buy"),
        (Outcome.ENV_FAULT, "the tool buy raised KeyError: 'x'", "buy"),
        (Outcome.INFRA_FAULT, "PolicyError: the agent said: tool buy: no", ""),
        (Outcome.ENV_FAULT, "reset (shop.py:3): ValueError: tool buy: no", ""),
        (Outcome.TIMEOUT, "tool buy: no", ""),
    ],
)
def test_the_tool_that_ended_an_episode(outcome: Outcome, error: str, name: str) -> None:
    task = Task(prompt=({"role": "user", "content": "?"},))
    use = ToolUse(name="search", seconds=1.0)
    turn = Turn(kind="text", observation=(), message={"role": "assistant", "content": ""}, tool_uses=(use,))
    episode = Episode(task=task, turns=(turn,), outcome=outcome, reward=None, error=error, id="e")
    assert faulted_tool(episode) == name
    figures = tool_figures([episode])
    assert {tool: item.faults for tool, item in figures.items() if item.faults} == ({name: 1} if name else {})
    assert tool_metrics([episode]).get(f"tool/{name}/faults", 0) == int(bool(name))
