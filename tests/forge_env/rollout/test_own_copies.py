"""What an environment, a reward or a script edits in place reaches no other episode, and no record."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from forge_env.core.env import Env
from forge_env.core.episode import Episode, Group
from forge_env.core.tools import Tool, reward, tool
from forge_env.core.types import Action, EpisodeLimits, Message, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import GroupSpec, run_group
from forge_env.tool_env.tool_env import ToolEnv

TASK = Task(
    prompt=({"role": "user", "content": "Hi"},), target=["4"], metadata={"deck": [1, 2, 3, 4], "at": {"x": 0}}, id="t"
)
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": {"at": {"x": 1}}}}],
}
ANSWER: Message = {"role": "assistant", "content": "4"}


async def script(messages: list[Message]) -> Message:
    """Returns constants, as a list of answers would: one call, and then the answer."""
    return ANSWER if messages[-1]["role"] != "user" else CALL


class Plain(ToolEnv):
    @tool
    def look(self, at: dict[str, Any]) -> str:
        """Look."""
        return str(at)

    @reward
    def right(self, answer: str) -> float:
        return float([answer] == self.task.target)


class EditsPrompt(Plain):
    def setup(self) -> None:
        self.messages[-1]["content"] += " !"


class EditsTask(Plain):
    def setup(self) -> None:
        self.task.metadata["at"]["x"] += 1
        self.task.metadata["deck"].pop()
        self.task.metadata["n"] = self.task.metadata.get("n", 0) + 1  # type: ignore[index]
        self.task.target.append("5")
        self.task.prompt[0]["content"] += "?"
        self.messages[-1]["content"] = f"{self.task.metadata} {self.task.target} {self.task.prompt}"


class EditsAnswer(Plain):
    async def step(self, action: Action) -> Any:
        action.message["content"] += " edited"
        for call in action.tool_calls:
            assert call.arguments is not None
            call.arguments["at"]["x"] += 1
        for call in action.message.get("tool_calls", ()):
            call["function"]["name"] = "other"
        return await super().step(action)


class EditsArgumentOfOwnTool(Plain):
    """Its tool is one of a server, whose arguments nothing here checks."""

    def __init__(self) -> None:
        look = Tool(
            name="look",
            description="Look.",
            parameters={"type": "object"},
            arguments=lambda arguments: {"at": arguments.pop("at")},
            function=self.edit,
        )
        super().__init__(extra_tools=[look])

    def edit(self, at: dict[str, Any]) -> str:
        at["x"] += 1
        return str(at)


class EditsResultOfStep(Plain):
    """What it adds to a result is what the model sees, and is in `messages`."""

    async def step(self, action: Action) -> Any:
        self.kept = self.messages
        answers, *others = await super().step(action)
        for answer in answers:
            answer["content"] += " turns left"
            assert self.messages[-1] is answer
        return answers, *others

    @reward
    def aliases_grow(self) -> float:
        return float(len(self.kept) == len(self.messages) == 4)


class SetsMessages(Plain):
    def setup(self) -> None:
        self.kept = self.messages = [{"role": "user", "content": "Hello"}]

    @reward
    def all_are_there(self) -> float:
        self.kept[0]["content"] = ""
        return float([m["role"] for m in self.messages] == ["user", "assistant", "tool", "assistant"])


class EditsOption(Plain):
    def __init__(self, words: list[str]) -> None:
        super().__init__()
        self.words = words

    def setup(self) -> None:
        self.words.append("b")
        self.messages[-1]["content"] = str(self.words)


class OneMessage(Env):
    """Keeps one message, and says everything with it."""

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        assert options is not None
        self.message: Message = options["task"].prompt[0]
        return [self.message], {}

    async def step(self, action: Action) -> Any:
        self.message["content"] += " again"
        return [self.message], 1.0, self.message["content"].count("again") == 2, False, {}


def play(
    env: type[Env], task: Task, options: dict[str, Any] | None = None, *, agent: Any = script, count: int = 3
) -> tuple[Episode, ...]:
    async def group() -> Group:
        async with EnvFactory(env, **(options or {})) as factory:
            spec = GroupSpec(task=task, count=count, seed=0, group_id="g")
            return await run_group(factory, ScriptedAgent(agent), spec, limits=EpisodeLimits(max_turns=3))

    return asyncio.run(group()).episodes


@pytest.mark.parametrize(
    ("env", "first"),
    [
        (EditsPrompt, "Hi !"),
        (
            EditsTask,
            f"{ {'deck': [1, 2, 3], 'at': {'x': 1}, 'n': 1} } ['4', '5'] ({ {'role': 'user', 'content': 'Hi?'} },)",
        ),
        (EditsAnswer, "Hi"),
        (EditsArgumentOfOwnTool, "Hi"),
        (EditsResultOfStep, "Hi"),
        (SetsMessages, "Hello"),
        (EditsOption, "['a', 'b']"),
        (OneMessage, "Hi"),
    ],
)
def test_an_edit_in_place_is_of_one_episode(env: type[Env], first: str) -> None:
    edits_reach_one_episode(env, first)


def edits_reach_one_episode(env: type[Env], first: str) -> None:
    task, constants, options = copy.deepcopy(TASK), copy.deepcopy([CALL, ANSWER]), {"words": ["a"]}
    episodes = play(env, task, options if env is EditsOption else None)
    assert [episode.error for episode in episodes] == [""] * 3
    assert [episode.messages[0]["content"] for episode in episodes] == [first] * 3
    turns = [[(t.observation, t.message, t.tool_calls, t.reward) for t in episode.turns] for episode in episodes]
    assert turns[0] == turns[1] == turns[2]
    assert all(message in constants for _, message, *_ in turns[0])
    arguments = [call.arguments for _, _, calls, _ in turns[0] for call in calls]
    assert arguments and all(at == {"at": {"x": 1}} for at in arguments)
    assert task == TASK and constants == [CALL, ANSWER] and options == {"words": ["a"]}
    assert episodes[0].task.metadata == TASK.metadata  # the record has the task as it was given


def test_the_record_is_what_the_model_saw_and_wrote() -> None:
    saw: list[list[Message]] = []

    async def watching(messages: list[Message]) -> Message:
        saw.append(copy.deepcopy(messages))
        return {"role": "assistant", "content": "go on"}

    messages = play(OneMessage, TASK, agent=watching, count=1)[0].messages
    assert [message["content"] for message in messages] == ["Hi", "go on", "Hi again", "go on", "Hi again again"]
    assert saw[1] == messages[:3]


def test_what_a_script_edits_is_in_no_record_and_not_in_what_it_reads_next() -> None:
    first = []

    def edits(messages: list[Message]) -> Message:
        first.append(messages[0]["content"])
        messages[0]["content"] += " edited"
        for message in messages:
            message.get("tool_calls", [{"function": {}}])[0]["function"]["arguments"] = {"at": "edited"}
        return copy.deepcopy(ANSWER if len(messages) > 2 else CALL)

    messages = play(Plain, TASK, agent=edits, count=1)[0].messages
    assert messages[0]["content"] == "Hi" and "edited" not in str(messages)
    assert set(first) == {"Hi"} and len(first) > 1
