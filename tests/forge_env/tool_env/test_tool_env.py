"""ToolEnv: tools from methods, a model's mistakes as observations, rewards that are finite or not at all."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, Literal

import pytest

from forge_env.core.episode import Turn
from forge_env.core.errors import EnvError
from forge_env.core.protocols import Agent, Conversation
from forge_env.core.tools import tool
from forge_env.core.types import Action, EpisodeLimits, Task, ToolCall
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.tool_env import ToolEnv

TASK = Task(prompt=({"role": "user", "content": "?"},), target="42")


class Desk(ToolEnv):
    """One tool for each way in which a tool can behave."""

    system_prompt = "Be brief."

    @tool
    def repeat(self, word: str, times: int = 2, mode: Literal["up", "down"] = "down") -> str:
        """Repeat a word.

        Args:
            word: what is
                repeated
            times: how often
        """
        return (word.upper() if mode == "up" else word.lower()) * min(times, 9)

    @tool
    async def total(self, numbers: list[float]) -> float:
        """Add numbers."""
        return sum(numbers)

    @tool
    def broken(self) -> str:
        """Raise."""
        raise ZeroDivisionError("no luck")

    def not_a_tool(self) -> str:
        return "secret"


def call(name: str, arguments: dict[str, Any] | None, **more: str) -> ToolCall:
    return ToolCall(id="call_7", name=name, arguments=arguments, **more)


def says(text: str = "", *calls: ToolCall) -> Action:
    return Action(message={"role": "assistant", "content": text}, tool_calls=calls)


async def started(env: ToolEnv) -> ToolEnv:
    await env.reset(seed=0, options={"task": TASK})
    return env


async def told(tool_call: ToolCall, env: ToolEnv | None = None) -> str:
    """What the model is told after one call; the episode goes on in every case."""
    env = await started(env or Desk())
    messages, value, terminated, truncated, _ = await env.step(says("", tool_call))
    assert (value, terminated, truncated) == (0.0, False, False)
    [message] = messages
    assert message["role"] == "tool" and message["tool_call_id"] == "call_7" and message["name"] == tool_call.name
    return message["content"]


# ---- what the model is shown ----


def test_schema_comes_from_signature_and_docstring() -> None:
    specs = {spec["function"]["name"]: spec for spec in Desk().tools}
    assert set(specs) == {"repeat", "total", "broken"}
    assert specs["repeat"] == {
        "type": "function",
        "function": {
            "name": "repeat",
            "description": "Repeat a word.",
            "parameters": {
                "type": "object",
                "properties": {
                    "word": {"type": "string", "description": "what is repeated"},
                    "times": {"type": "integer", "default": 2, "description": "how often"},
                    "mode": {"type": "string", "enum": ["up", "down"], "default": "down"},
                },
                "required": ["word"],
            },
        },
    }
    parameters = specs["total"]["function"]["parameters"]
    assert parameters["properties"] == {"numbers": {"type": "array", "items": {"type": "number"}}}


def test_subclasses_inherit_tools_and_may_replace_them() -> None:
    class Other(Desk):
        @tool
        def repeat(self, title: str) -> str:
            """Say it once."""
            return title

    specs = {spec["function"]["name"]: spec["function"]["parameters"] for spec in Other().tools}
    assert sorted(specs) == sorted(spec["function"]["name"] for spec in Desk().tools)
    assert specs["repeat"]["properties"] == {"title": {"type": "string"}}, "a parameter of this name keeps it"
    assert asyncio.run(told(call("repeat", {"title": "Ab"}), Other())) == "Ab"


async def test_reset_shows_the_system_prompt_and_the_task() -> None:
    messages, _ = await Desk().reset(seed=0, options={"task": TASK})
    assert messages == ({"role": "system", "content": "Be brief."}, *TASK.prompt)
    with pytest.raises(EnvError, match="options"):
        await Desk().reset(seed=0)


# ---- calls, right and wrong ----


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("repeat", {"word": "aB"}, "abab"),
        ("repeat", {"word": "aB", "times": "3", "mode": "up"}, "ABABAB"),  # "3" is coerced
        ("total", {"numbers": ["1", 2, 0.5]}, "3.5"),
        ("double", {"number": "4"}, "8"),  # a function, which is no method
    ],
)
async def test_a_good_call_is_answered(name: str, arguments: dict[str, Any], answer: str) -> None:
    def double(number: int) -> int:
        return 2 * number

    assert await told(call(name, arguments), Desk(extra_tools=[double])) == answer


@pytest.mark.parametrize(
    ("tool_call", "words"),
    [
        (call("repeat", {}), ["repeat", "word", "required"]),
        (call("repeat", {"word": "a", "mode": "left"}), ["mode", "'up'"]),
        (call("repaet", {"word": "a"}), ["no tool 'repaet'", "repeat, "]),
        (call("not_a_tool", {}), ["no tool 'not_a_tool'"]),
        (call("__class__", {}), ["no tool"]),
        (call("repeat", None, raw="{", error="Expecting a value."), ["not a JSON object", "Expecting a value."]),
        (call("", None, raw="{", error="Expecting a value."), ["no tool ''", "Expecting a value."]),
        (call("broken", {}), ["ZeroDivisionError", "no luck"]),
    ],
)
async def test_a_mistake_is_told_to_the_model(tool_call: ToolCall, words: list[str]) -> None:
    text = await told(tool_call)
    assert text.startswith("Error: ")
    assert "secret" not in text
    assert [word for word in words if word not in text] == []


async def test_tools_switched_off_are_shown_and_answer_nothing() -> None:
    env = Desk(use_tools=False)
    assert env.tools == Desk().tools
    text = await told(call("repeat", {"word": "ab"}), env)
    assert "switched off" in text and "abab" not in text


# ---- rewards ----


class Answers(Agent):
    """An agent that says one thing."""

    async def act(self, conversation: Conversation, tools: Any) -> tuple[Turn, Action]:
        action = says("42")
        return Turn(kind="text", observation=conversation.observation, message=action.message), action


async def test_an_instance_is_gone_with_its_episode() -> None:
    """Nothing of a cycle: the garbage collector comes late where many episodes run, and an instance may be large."""
    instances: list[weakref.ref[ToolEnv]] = []

    class Large(ToolEnv):  # with coroutines: a thread may hold the instance for a moment longer
        async def setup(self) -> None:
            instances.append(weakref.ref(self))

        @tool
        async def look(self) -> str:
            """Look."""
            return "nothing"

    class Looks(Answers):
        async def act(self, conversation: Conversation, tools: Any) -> tuple[Turn, Action]:
            turn, action = await super().act(conversation, tools)
            return turn, action if conversation.turns else says("", call("look", {}))

    gc.disable()
    try:
        async with EnvFactory(Large) as factory:
            result = await run_episode(factory, Looks(), TASK, seed=0, episode_id="e", limits=EpisodeLimits())
        assert (len(result.turns), [instance() for instance in instances]) == (2, [None])
    finally:
        gc.enable()
