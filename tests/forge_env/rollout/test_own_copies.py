"""What an environment, a reward, a user or a script edits in place reaches no other episode, and no record."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from forge_env.core.env import Env
from forge_env.core.episode import Group
from forge_env.core.own_copies import own_episode
from forge_env.core.tools import reward, tool
from forge_env.core.types import Action, EpisodeLimits, Message, Task
from forge_env.gymnasium.env import SyncEnv
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_group
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.users import ScriptedUser, UserTurn
from forge_env.users.conversation import ConversationEnv

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


def user_edits(messages: list[Message], task: Task) -> str | None:
    for message in messages:
        message["content"] += "*"
    task.metadata["deck"].pop()
    return None if len(messages) > 3 else f"{task.metadata['deck']}"


class UserEdits(ConversationEnv):
    user = ScriptedUser(user_edits)

    @reward
    def right(self) -> float:
        return float(all("*" not in message["content"] for message in self.messages))


class OneMessage(Env):
    """Keeps one message, and says everything with it."""

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        assert options is not None
        self.message: Message = options["task"].prompt[0]
        return [self.message], {}

    async def step(self, action: Action) -> Any:
        self.message["content"] += " again"
        return [self.message], 1.0, self.message["content"].count("again") == 2, False, {}


async def play(env: type[Env], task: Task, options: dict[str, Any] | None = None) -> Group:
    async with EnvFactory(env, **(options or {})) as factory:
        return await run_group(
            factory, ScriptedAgent(script), task, count=3, seed=0, group_id="g", limits=EpisodeLimits(max_turns=3)
        )


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
        (EditsEarlierMessages, "Hi"),
        (RewardEdits, "Hi"),
        (EditsOption, "['a', 'b']"),
        (UserEdits, "Hi"),
        (OneMessage, "Hi"),
    ],
)
def test_an_edit_in_place_is_of_one_episode(env: type[Env], first: str) -> None:
    task, constants, options = copy.deepcopy(TASK), copy.deepcopy([CALL, ANSWER]), {"words": ["a"]}
    group = asyncio.run(play(env, task, options if env is EditsOption else None))
    assert [episode.error for episode in group.episodes] == [""] * 3
    assert [episode.messages[0]["content"] for episode in group.episodes] == [first] * 3
    turns = [[(t.observation, t.message, t.tool_calls, t.reward) for t in episode.turns] for episode in group.episodes]
    assert turns[0] == turns[1] == turns[2]
    assert task == TASK and constants == [CALL, ANSWER] and options == {"words": ["a"]}
    assert group.episodes[0].task.metadata == TASK.metadata  # the record has the task as it was given


def test_the_record_is_what_the_model_saw_and_wrote() -> None:
    saw: list[list[Message]] = []

    async def watching(messages: list[Message]) -> Message:
        saw.append(copy.deepcopy(messages))
        return {"role": "assistant", "content": "go on"}

    async def episode() -> list[Message]:
        async with EnvFactory(OneMessage) as factory:
            group = await run_group(factory, ScriptedAgent(watching), TASK, count=1, seed=0, group_id="g")
        return group.episodes[0].messages

    messages = asyncio.run(episode())
    assert [message["content"] for message in messages] == ["Hi", "go on", "Hi again", "go on", "Hi again again"]
    assert saw[1] == messages[:3]


def test_each_reward_function_gets_what_the_one_before_has_not_edited() -> None:
    episode = asyncio.run(play(RewardEdits, TASK)).episodes[0]
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

    group = asyncio.run(play(EditsSpec, TASK))
    assert all("share the specs of tools: set self.tools to an edited copy" in e.error for e in group.episodes)


def test_a_copy_of_the_specs_can_be_edited_and_set() -> None:
    class OwnSpecs(Plain):
        def setup(self) -> None:
            self.tools = copy.deepcopy(self.tools)
            self.tools[0]["function"]["parameters"]["properties"]["at"]["title"] = self.tools[0]["type"]

    assert [e.error for e in asyncio.run(play(OwnSpecs, TASK)).episodes] == [""] * 3


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


def test_an_environment_that_is_reset_by_hand_or_by_gymnasium_edits_its_own_task() -> None:
    task, env = copy.deepcopy(TASK), SyncEnv(EditsTask)
    try:
        options: dict[str, Any] = {"task": task, "more": ["a"]}
        texts = [env.reset(seed=0, options=options)[0] for _ in range(3)]
        asyncio.run(_reset(EditsTask(), task))
    finally:
        env.close()
    assert len(set(texts)) == 1 and task == TASK and options["more"] == ["a"]


async def _reset(env: ToolEnv, task: Task) -> None:
    await env.reset(seed=0, options={"task": task})


def test_a_user_is_given_copies_of_the_messages() -> None:
    class Shouts:
        async def reply(self, messages: list[Message]) -> UserTurn:
            messages[0]["content"] = messages[0]["content"].upper()
            return UserTurn(text="bye", done=True)

    class Shop(ConversationEnv):
        user = Shouts()

    episode = asyncio.run(play(Shop, TASK)).episodes[0]
    assert episode.messages[0]["content"] == "Hi" and not episode.error


def test_a_copied_episode_shares_only_what_cannot_be_edited() -> None:
    episode = asyncio.run(play(Plain, TASK)).episodes[0]
    before, copied = episode.to_json(), own_episode(episode)
    assert copied == episode
    copied.task.metadata["deck"].clear()
    copied.turns[0].observation[0]["content"] = copied.turns[0].message["content"] = "x"
    copied.turns[0].tool_calls[0].arguments.clear()  # type: ignore[union-attr]
    copied.turns[0].reward, copied.rewards["right"] = 5.0, 2.0  # type: ignore[index]
    copied.info["x"] = 1  # type: ignore[index]
    assert episode.to_json() == before
