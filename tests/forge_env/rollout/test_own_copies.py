"""What an environment, a reward or a script edits in place reaches no other episode, and no record."""

from __future__ import annotations

import asyncio
import collections
import copy
import dataclasses
import functools
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from agents.scripted import ScriptedAgent
from forge_env.core import own_copies
from forge_env.core.env import Env
from forge_env.core.episode import Episode, Group
from forge_env.core.own_copies import own_episode
from forge_env.core.protocols import Conversation
from forge_env.core.tools import Tool, reward, tool
from forge_env.core.types import Action, EpisodeLimits, Message, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import GroupSpec, run_episode, run_group
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


class EditsTaskBeforeReset(Plain):
    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        assert options is not None
        options["task"].metadata["deck"].pop()
        options["task"].prompt[0]["content"] += str(options["task"].metadata["deck"])
        return await super().reset(seed=seed, options=options)


class EditsAnswer(Plain):
    async def step(self, action: Action) -> Any:
        action.message["content"] += " edited"
        for call in action.tool_calls:
            assert call.arguments is not None
            call.arguments["at"]["x"] += 1
        for call in action.message.get("tool_calls", ()):
            call["function"]["name"] = "other"
        return await super().step(action)


class EditsArgument(Plain):
    @tool
    def look(self, at: Any) -> str:
        """Look."""
        at["x"] += 1
        return str(at)


class At(BaseModel):
    x: Any


class EditsPartOfArgument(Plain):
    @tool
    def look(self, at: At) -> str:
        """Look."""
        at.x["y"].append(1)
        return str(at.x)


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


class EditsKeptMessage(Plain):
    """Edits in the second turn what it has kept in the first one."""

    @tool
    def look(self, at: dict[str, Any]) -> str:
        """Look."""
        self.kept = [self.messages[-1], self.messages[0]]
        return str(len(self.messages))

    @reward
    def kept_are_its_own(self) -> float:
        for message in self.kept:
            message["content"] += " edited"
            message.get("tool_calls", [{"function": {}}])[0]["function"]["name"] = "other"
        return float(len(self.messages))


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


class StepEdits:
    async def step(self, action: Action) -> Any:
        action.message["content"] += " edited"
        return await super().step(action)  # type: ignore[misc]


class MixedIn(StepEdits, Plain):
    pass


def edits_steps(env: type[Plain]) -> type[Plain]:
    before = env.step

    @functools.wraps(before)
    async def step(self: Plain, action: Action) -> Any:
        action.message["content"] += " edited"
        return await before(self, action)

    env.step = step  # type: ignore[method-assign]
    return env


@edits_steps
class Decorated(Plain):
    pass


class SetsStep(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.step = functools.partial(self.edit, self.step)  # type: ignore[method-assign]

    async def edit(self, step: Any, action: Action) -> Any:
        action.message["content"] += " edited"
        return await step(action)


class SetsMessages(Plain):
    def setup(self) -> None:
        self.kept = self.messages = [{"role": "user", "content": "Hello"}]

    @reward
    def all_are_there(self) -> float:
        self.kept[0]["content"] = ""
        return float([m["role"] for m in self.messages] == ["user", "assistant", "tool", "assistant"])


class EditsEarlierMessages(Plain):
    async def step(self, action: Action) -> Any:
        for message in self.messages:
            message["content"] += "!"
        return await super().step(action)


def edits_all(messages: list[Message], task: Task, target: list[str]) -> float:
    messages[0]["content"] += "x"
    messages.clear()
    target.append("5")
    task.metadata["deck"].pop()
    return len(task.metadata["deck"]) + len(target)


def edits_too(messages: list[Message], task: Task, target: list[str]) -> float:
    return edits_all(messages, task, target)


class RewardEdits(Plain):
    rubric = (edits_all, edits_too)


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
        (EditsTaskBeforeReset, "Hi[1, 2, 3]"),
        (EditsAnswer, "Hi"),
        (EditsArgument, "Hi"),
        (EditsPartOfArgument, "Hi"),
        (EditsArgumentOfOwnTool, "Hi"),
        (EditsKeptMessage, "Hi"),
        (EditsResultOfStep, "Hi"),
        (MixedIn, "Hi"),
        (Decorated, "Hi"),
        (SetsStep, "Hi"),
        (SetsMessages, "Hello"),
        (EditsEarlierMessages, "Hi"),
        (RewardEdits, "Hi"),
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


@pytest.mark.parametrize(
    ("env", "rewards"),
    [
        (EditsKeptMessage, {"kept_are_its_own": 4.0}),
        (EditsResultOfStep, {"aliases_grow": 1.0}),
        (SetsMessages, {"all_are_there": 1.0}),
    ],
)
def test_the_messages_of_an_environment_are_the_whole_conversation(env: type[Env], rewards: dict[str, float]) -> None:
    for episode in play(env, TASK):
        assert {name: value for name, value in episode.rewards.items() if name != "right"} == rewards


def test_what_an_environment_adds_to_a_result_is_seen() -> None:
    assert play(EditsResultOfStep, TASK)[0].messages[2]["content"] == "{'x': 1} turns left"


def test_what_a_script_edits_is_in_no_record() -> None:
    class Word(str):  # no pickle holds an object of a class that stands in no module
        pass

    task = dataclasses.replace(TASK, prompt=({"role": "user", "content": Word("Hi")},))

    def edits(messages: list[Message]) -> Message:
        messages[0]["content"] += " edited"
        for message in messages:
            message.get("tool_calls", [{"function": {}}])[0]["function"]["arguments"] = {"at": "edited"}
        return copy.deepcopy(ANSWER if len(messages) > 2 else CALL)

    messages = play(Plain, task, agent=edits, count=1)[0].messages
    assert messages[0]["content"] == "Hi" and "edited" not in str(messages)


def test_a_message_is_copied_once_for_the_agent() -> None:
    """A copy of the whole conversation in each turn made a turn of 150 four times as slow."""
    first, second, third = ({"role": "user", "content": text} for text in "abc")
    conversation = Conversation(request_id="r", observation=(first, second))
    given = conversation.messages
    given[0]["content"] = "edited"
    conversation.observation = (first, third)
    again = conversation.messages
    assert again == [first, third] and again[0] is not first
    assert all(one is other for one, other in zip(again, conversation.messages, strict=True))
    conversation.observation = (first,)
    assert conversation.messages == [first] == [{"role": "user", "content": "a"}]


def test_a_script_may_edit_and_return_the_same_message_again() -> None:
    message = copy.deepcopy(CALL)
    message["tool_calls"][0]["function"]["arguments"]["at"] = {"x": 0}

    async def counts(messages: list[Message]) -> Message:
        message["tool_calls"][0]["function"]["arguments"]["at"]["x"] += 1
        return message

    turns = play(Plain, TASK, agent=counts, count=1)[0].turns
    assert [turn.tool_calls[0].arguments for turn in turns] == [{"at": {"x": x}} for x in (1, 2, 3)]


def copies_in(turns: int, *bases: type) -> int:
    """The number of calls of the module that makes copies, in an episode of so many turns with a call."""

    class Looks(*bases, ToolEnv):  # type: ignore[misc]
        @tool
        async def look(self, at: str) -> str:
            """Look."""
            return at

    async def looks(messages: list[Message]) -> Any:
        function = {"name": "look", "arguments": {"at": "x"}}
        return {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}

    counts = collections.Counter[str]()

    async def episode() -> None:
        async with EnvFactory(Looks) as factory:
            limits = EpisodeLimits(max_turns=turns)
            sys.setprofile(lambda frame, event, _: counts.update([frame.f_code.co_filename] * (event == "call")))
            await run_episode(factory, ScriptedAgent(looks), TASK, seed=0, episode_id="e", limits=limits)

    try:
        asyncio.run(episode())
    finally:
        sys.setprofile(None)
    return counts[own_copies.__file__]


def test_a_turn_of_an_environment_that_overrides_no_step_costs_no_copies() -> None:
    """Copies took a quarter of the time of a simple environment."""
    assert 0 < copies_in(9) == copies_in(1) < 30
    assert copies_in(9, StepEdits) > copies_in(1, StepEdits)


def test_each_reward_function_gets_what_the_one_before_has_not_edited() -> None:
    episode = play(RewardEdits, TASK)[0]
    assert episode.rewards == {"right": 1.0, "edits_all": 5.0, "edits_too": 5.0}


@pytest.mark.parametrize(
    "edit",
    [
        lambda spec: spec["function"].update(description="!"),
        lambda spec: spec["function"]["parameters"]["properties"]["at"].pop("type"),
        lambda spec: spec["function"]["parameters"]["required"].append("z"),
    ],
)
def test_the_specs_of_tools_refuse_edits(edit: Any) -> None:
    class EditsSpec(Plain):
        def setup(self) -> None:
            edit(self.tools[0])

    errors = [episode.error for episode in play(EditsSpec, TASK)]
    assert all("share the specs of tools: set self.tools to an edited copy" in error for error in errors)


def test_a_copy_of_the_specs_can_be_edited_and_set() -> None:
    class OwnSpecs(Plain):
        def setup(self) -> None:
            self.tools = copy.deepcopy(self.tools)
            self.tools[0]["function"]["parameters"]["properties"]["at"]["title"] = self.tools[0]["type"]

    assert [e.error for e in play(OwnSpecs, TASK)] == [""] * 3


def test_a_task_list_that_is_handed_out_twice_is_not_edited() -> None:
    kept = [copy.deepcopy(TASK)]

    class Keeps(Plain):
        @classmethod
        def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> list[Task]:
            return kept

    tasks = list(EnvFactory(Keeps).tasks(count=1))
    tasks[0].metadata["deck"].pop()
    tasks.clear()
    assert list(EnvFactory(Keeps).tasks(count=1)) == [TASK] == kept


def test_a_copied_episode_shares_only_what_cannot_be_edited() -> None:
    episode = play(Plain, TASK)[0]
    before, copied = episode.to_json(), own_episode(episode)
    assert copied == episode
    copied.task.metadata["deck"].clear()
    copied.turns[0].observation[0]["content"] = copied.turns[0].message["content"] = "x"
    copied.turns[0].tool_calls[0].arguments.clear()  # type: ignore[union-attr]
    copied.turns[0].reward, copied.rewards["right"] = 5.0, 2.0  # type: ignore[index]
    copied.info["x"] = 1  # type: ignore[index]
    assert episode.to_json() == before


async def test_an_environment_that_is_reset_by_hand_edits_its_own_task() -> None:
    task = copy.deepcopy(TASK)
    for _ in range(2):
        await EditsTask().reset(seed=0, options={"task": task})
    assert task == TASK
