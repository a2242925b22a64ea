"""ConversationEnv with scripted users: whose turn it is, how it ends, what is scored, and which users are faults."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from contrib.common.usage import Usage
from contrib.judges.users import ConversationEnv, ScriptedUser, UserTurn, transcript
from contrib.judges.users.user import without_thoughts
from envs.messages import call
from forge_env.core.env import Env
from forge_env.core.episode import Episode
from forge_env.core.errors import EnvError, InfraError, UserError
from forge_env.core.tools import reward, tool
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode

TASK = Task(prompt=({"role": "user", "content": "Hello?"},), target="bye", metadata={"name": "Ada"})
OPENING = Task(prompt=({"role": "system", "content": "Be kind."},), target="bye", metadata={"name": "Ada"})


class Talk(ConversationEnv):
    """The target is to be said once, by the agent."""

    @tool
    def look(self) -> str:
        """Look something up."""
        return "secret"

    @reward
    def said(self, messages: list[Message]) -> float:
        return float(any(m["content"] == self.task.target for m in messages if m["role"] == "assistant"))

    @reward(weight=0.0)
    def ended(self) -> float:
        return float(self.user_is_done)

    @reward(weight=0.0)
    def heard(self, messages: list[Message]) -> float:
        return float(sum(m["role"] == "user" for m in messages))


def with_user(user: Any) -> type[Talk]:
    return type("TalkWith", (Talk,), {"user": user, "__module__": __name__})


def says(*texts: str) -> Callable[[list[Message]], Message]:
    """A script of the agent: "look" calls the tool; the last text is repeated."""

    def script(messages: list[Message]) -> Message:
        taken = sum(message["role"] == "assistant" for message in messages)
        text = texts[min(taken, len(texts) - 1)]
        if text != "look":
            return {"role": "assistant", "content": text}
        return {**call("look"), "content": "I look it up."}

    return script


async def play(env_class: type[Env], *texts: str, task: Task = TASK, limits: EpisodeLimits | None = None) -> Episode:
    async with EnvFactory(env_class) as factory:
        agent = ScriptedAgent(says(*texts))
        return await run_episode(factory, agent, task, seed=3, episode_id="e", limits=limits)


def words(episode: Episode) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in episode.messages if m["role"] != "system"]


# ---- turns ----


async def test_user_and_agent_take_turns_until_the_user_is_done() -> None:
    user = ScriptedUser(["And?", "Well."])
    episode = await play(with_user(user), "one", "two", "bye")
    assert [text for _, text in words(episode)[:6]] == ["Hello?", "one", "And?", "two", "Well.", "bye"]
    assert (episode.outcome, episode.reward, episode.ended_by) == (Outcome.SCORED, 1.0, "environment")
    assert episode.rewards == {"said": 1.0, "ended": 1.0, "heard": 3.0}
    assert [len(turn.observation) for turn in episode.turns] == [1, 1, 1], "an observation is the new messages only"


async def test_the_user_begins_where_the_prompt_does_not() -> None:
    episode = await play(with_user(ScriptedUser(["Hi.", "And?"])), "one", "bye", task=OPENING)
    assert words(episode)[:4] == [("user", "Hi."), ("assistant", "one"), ("user", "And?"), ("assistant", "bye")]
    assert [m["role"] for m in episode.turns[0].observation] == ["system", "user"]


async def test_tools_work_between_answers_and_the_user_sees_none_of_it() -> None:
    seen: list[Sequence[Message]] = []

    def reply(messages: list[Message]) -> UserTurn:
        seen.append(messages)
        return UserTurn(text="Thanks.", done=True)

    episode = await play(with_user(ScriptedUser(reply)), "look", "<think>secret?</think>bye")
    assert [message["role"] for message in episode.messages[:4]] == ["user", "assistant", "tool", "assistant"]
    assert episode.messages[2]["content"] == "secret"
    assert [use.name for use in episode.turns[0].tool_uses] == ["look"]
    lines = transcript(seen[0]).splitlines()
    assert lines == ['{"role": "user", "content": "Hello?"}', '{"role": "assistant", "content": "bye"}']
    assert [m["content"] for m in episode.tail] == ["Thanks."] and episode.rewards["heard"] == 2.0


async def test_at_the_limit_of_turns_the_conversation_is_scored_as_truncated() -> None:
    user = ScriptedUser(lambda messages: "Go on.")
    episode = await play(with_user(user), "bye", "no", "look", limits=EpisodeLimits(max_turns=3))
    assert (episode.outcome, episode.ended_by, len(episode.turns)) == (Outcome.TRUNCATED, "max_turns", 3)
    assert (episode.reward, episode.rewards["ended"]) == (1.0, 0.0)


async def test_a_user_who_is_done_in_the_last_turn_ends_it() -> None:
    user = ScriptedUser(["Go on."], until=lambda messages: messages[-1]["content"] == "bye")
    episode = await play(with_user(user), "no", "bye", limits=EpisodeLimits(max_turns=2))
    assert (episode.outcome, episode.ended_by, episode.rewards["ended"]) == (Outcome.SCORED, "environment", 1.0)


def test_a_conversation_has_more_turns_by_default() -> None:
    assert EnvFactory(Talk).episode_limits().max_turns == 20


async def test_episodes_at_once_have_users_of_their_own() -> None:
    async with EnvFactory(with_user(ScriptedUser(["a", "b"]))) as factory:
        agent = ScriptedAgent(says("bye"))
        runs = [run_episode(factory, agent, TASK, seed=i, episode_id=str(i)) for i in range(8)]
        episodes = await asyncio.gather(*runs)
    assert {tuple(words(episode)) for episode in episodes} == {tuple(words(episodes[0]))}
    assert [text for role, text in words(episodes[0]) if role == "user"] == ["Hello?", "a", "b"]


# ---- making users ----


class Counted:
    """A user of one's own, who is closed with his episode."""

    def __init__(self) -> None:
        self.closed = 0

    async def reply(self, messages: Sequence[Message]) -> UserTurn:
        return UserTurn(done=True, usage=Usage(prompt_tokens=5, completion_tokens=2, requests=1))

    async def aclose(self) -> None:
        self.closed += 1


async def test_a_user_made_for_the_task_is_closed_and_what_he_used_is_recorded() -> None:
    made: list[tuple[str, Counted]] = []

    class Made(Talk):
        async def make_user(self, task: Task) -> Counted:
            made.append((task.metadata["name"], Counted()))
            return made[-1][1]

    episode = await play(Made, "bye")
    assert [(name, user.closed) for name, user in made] == [("Ada", 1)]
    used = {"calls": 1, "requests": 1, "retries": 0, "prompt_tokens": 5, "completion_tokens": 2}
    assert episode.info["model_calls"] == {"user": used}


async def test_a_script_gets_the_task() -> None:
    user = ScriptedUser(lambda task, messages: task.metadata["name"], until=lambda task, messages: len(messages) > 3)
    episode = await play(with_user(user), "bye")
    assert words(episode)[:3] == [("user", "Hello?"), ("assistant", "bye"), ("user", "Ada")]


# ---- faults ----


def raising(messages: list[Message]) -> str:
    raise ZeroDivisionError("no words")


async def falling_silent(messages: list[Message]) -> str:
    return " \n"


async def unreachable(messages: list[Message]) -> str:
    raise InfraError("the line is dead")


FAULTS = {
    "raises": (ScriptedUser(raising), Outcome.ENV_FAULT, r"user \(.*test_conversation.py:.*ZeroDivisionError: no"),
    "says nothing": (ScriptedUser(falling_silent), Outcome.ENV_FAULT, "the user said nothing"),
    "returns a number": (ScriptedUser(lambda messages: 3), Outcome.ENV_FAULT, "script of the user returned 3"),
    "fails": (ScriptedUser(unreachable), Outcome.INFRA_FAULT, "the line is dead"),
}


@pytest.mark.parametrize(("case", "task"), [*((case, TASK) for case in FAULTS), ("raises", OPENING)])
async def test_a_user_that_fails_is_a_fault_and_no_zero(case: str, task: Task) -> None:
    user, outcome, message = FAULTS[case]
    episode = await play(with_user(user), "bye", task=task)
    assert (episode.outcome, episode.reward) == (outcome, None)
    assert re.search(message, episode.error), episode.error


async def test_a_user_who_never_begins_is_a_fault() -> None:
    episode = await play(with_user(ScriptedUser([])), "bye", task=OPENING)
    assert episode.outcome is Outcome.ENV_FAULT
    assert "ended the conversation before the agent could answer" in episode.error


async def test_a_user_who_hangs_is_a_fault() -> None:
    async def hang(messages: list[Message]) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    episode = await play(with_user(ScriptedUser(hang)), "bye", limits=EpisodeLimits(step_seconds=0.05))
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)


async def test_a_step_before_reset_is_refused() -> None:
    with pytest.raises(EnvError, match="before reset"):
        await with_user(ScriptedUser([]))().step(Action(message={"role": "assistant", "content": ""}))


# ---- mistakes ----


def test_what_is_no_user_is_refused() -> None:
    with pytest.raises(UserError, match="user is 'Ada', and no user: it has a method reply"):
        with_user("Ada")


async def test_an_environment_without_a_user_says_so() -> None:
    with pytest.raises(UserError, match="Talk has no user: set the class attribute user, or define make_user"):
        await play(Talk, "bye")


async def test_make_user_that_returns_no_user_is_named() -> None:
    class Wrong(Talk):
        def make_user(self, task: Task) -> str:
            return "Ada"

    assert "make_user returned 'Ada', and no user" in (await play(Wrong, "bye")).error


@pytest.mark.parametrize("lines", ["Hello", ["a", ""], ["a", 3]])
def test_lines_are_texts(lines: Any) -> None:
    with pytest.raises(UserError, match="a list of texts, none of them empty"):
        ScriptedUser(lines)


def test_a_script_with_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(UserError, match=r"the script .* 'message', which it cannot get\. Did you mean messages"):
        ScriptedUser(lambda message: "a")
    with pytest.raises(UserError, match="until of a scripted user has the parameter 'turns'"):
        ScriptedUser(["a"], until=lambda turns: True)


def test_thoughts_are_left_out() -> None:
    texts = {"<think>a</think>b<think>c</think>d": "bd", "a</think>b": "b", "b<think>a": "b", "<think>a": "", "b": "b"}
    assert {text: without_thoughts(text) for text in texts} == texts
