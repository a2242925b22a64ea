"""Turns that run at once: each in its own conversation, under one set of limits, and none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from benchmarks.simulated_time import World
from benchmarks.simulated_time import run as simulated
from contrib.external.concurrent_turns import ConcurrentEnv
from forge_env.core.env import Env, StepResult
from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import PolicyError, UserError
from forge_env.core.protocols import ContextFull, Conversation, NextTurn
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task, ToolSpec
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from forge_env.utils.deadlines import queued
from forge_env.utils.threads import instant

TASK = Task(prompt=({"role": "user", "content": "go"},))
LIMITS = EpisodeLimits(max_turns=9)


def tool(name: str) -> ToolSpec:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}


class Branches(ConcurrentEnv):
    """Asks at once in `contexts`; each branch asks `rounds` times. Ends with reward 1 when all of them have ended."""

    @instant
    def __init__(
        self,
        contexts: Sequence[int] = (0, 1, 2),
        rounds: int = 1,
        works: float = 0.0,
        time_spent_by: Any = "service",
        fails_at: int | None = None,
    ) -> None:
        self.time_spent_by = time_spent_by
        self._rounds = dict.fromkeys(contexts, rounds)
        self._works = works
        self._fails_at = fails_at
        self._due: list[int] = list(contexts)
        self._waiting = 0
        self._changed = asyncio.Event()
        self.told: list[str] = []

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        return self._ask()

    async def listen(self) -> StepResult:
        while not self._due and self._waiting:
            self._changed.clear()
            async with queued():
                await self._changed.wait()
        if self._works:
            await asyncio.sleep(self._works)
        if not self._due:
            return [{"role": "user", "content": "done"}], 1.0, True, False, {"told": self.told}
        observation, info = self._ask()
        return observation, 0.0, False, False, info

    async def answer(self, context: int, action: Action) -> None:
        self.told.append(f"{context}: {action.message['content']}")
        if context == self._fails_at:
            raise RuntimeError("it does not fit")
        self._rounds[context] -= 1
        if self._rounds[context]:
            self._due.append(context)
        self._free()

    async def no_room(self, context: int, reason: str) -> None:
        self.told.append(f"{context} has no room: {reason}")
        self._free()

    async def on_limit(self, limit: str, reason: str = "") -> None:
        self.told.append(limit)

    def final_info(self) -> Mapping[str, Any]:
        return {"told": self.told}

    def _ask(self) -> tuple[Sequence[Message], dict[str, Any]]:
        context = self._due.pop(0)
        self._waiting += 1
        self.tools = [tool(f"tool_{context}")]
        return [{"role": "user", "content": f"asked in {context}"}], {"next": NextTurn(context=context)}

    def _free(self) -> None:
        self._waiting -= 1
        self._changed.set()


class Together:
    """An agent that answers only when `count` turns have asked it; what it does then depends on the context."""

    def __init__(self, count: int, then: Callable[[str], None] = lambda text: None) -> None:
        self._count = count
        self._all_here = asyncio.Event()
        self._then = then
        self.seen: list[tuple[str, int | None, str]] = []
        self.left: list[str] = []

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        text = conversation.messages[-1]["content"]
        self.seen.append((conversation.request_id, conversation.seed, tools[0]["function"]["name"]))
        if len(self.seen) >= self._count:
            self._all_here.set()
        try:
            await self._all_here.wait()
            self._then(text)
            if "for ever" in text:
                await asyncio.Event().wait()
            return await echo().act(conversation, tools)
        finally:
            self.left.append(conversation.request_id)


def echo() -> ScriptedAgent:
    async def say(messages: list[Message]) -> Message:
        return {"role": "assistant", "content": f"echo {messages[-1]['content']}"}

    return ScriptedAgent(say)


async def play(who: Any, *, env: type[Env] = Branches, limits: EpisodeLimits = LIMITS, **options: Any) -> Episode:
    async with EnvFactory(env) as factory:
        episode = await run_episode(
            factory, who, TASK, seed=7, episode_id="g/0", group_id="g", limits=limits, env_options=options
        )
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, "nothing is left behind"
    return episode


async def test_turns_that_are_asked_at_once_run_at_once_and_each_conversation_is_whole() -> None:
    who = Together(3)
    episode = await play(who, rounds=2)
    assert (episode.outcome, episode.reward, episode.ended_by) == (Outcome.SCORED, 1.0, "environment"), episode.error
    said = [m["content"] for m in episode.messages]
    each = [[f"asked in {i}", f"echo asked in {i}"] * 2 for i in range(3)]
    assert sorted(said[i : i + 4] for i in (0, 4, 8)) == each, "the turns of a conversation follow each other"
    assert said[12:] == ["done"]
    assert [turn.reward for turn in episode.turns] == [0.0] * 5 + [1.0]
    assert episode.info["turns_at_once"] == 3
    assert who.seen[:3] == [
        ("g/0", 7, "tool_0"),
        ("g/0/context1", who.seen[1][1], "tool_1"),
        ("g/0/context2", who.seen[2][1], "tool_2"),
    ]
    assert len({seed for _, seed, _ in who.seen}) == 3


@pytest.mark.parametrize("error", [PolicyError("is gone"), KeyError("is gone")])
async def test_a_turn_that_fails_ends_the_others(error: Exception) -> None:
    class Asks(Branches):
        def _ask(self) -> Any:
            observation, info = super()._ask()
            return [{"role": "user", "content": observation[0]["content"].replace("0", "0 for ever")}], info

    def fail(text: str) -> None:
        if text.endswith("1"):
            raise error

    who = Together(3, fail)
    episode = await play(who, env=Asks)
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None) and "is gone" in episode.error
    assert sorted(who.left) == ["g/0", "g/0/context1", "g/0/context2"]
    assert all("asked in 0" not in m["content"] for m in episode.messages), "what was cancelled is no turn"


async def test_a_users_mistake_in_one_turn_ends_the_run() -> None:
    def fail(text: str) -> None:
        raise UserError("name a model that exists")

    with pytest.raises(UserError, match="name a model that exists"):
        await play(Together(3, fail))


async def test_an_environment_that_fails_on_an_answer_keeps_the_answer() -> None:
    episode = await play(Together(3), fails_at=1)
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    assert "RuntimeError: it does not fit" in episode.error
    assert "echo asked in 1" in [turn.message["content"] for turn in episode.turns]


async def test_a_context_has_one_turn_at_a_time() -> None:
    episode = await play(Together(2), contexts=(0, 0))
    assert episode.outcome is Outcome.ENV_FAULT
    assert "Branches asked for a turn of context 0, whose last turn is being answered" in episode.error


async def test_an_episode_that_is_cancelled_cancels_its_turns() -> None:
    who = Together(4)  # one more than there are
    playing = asyncio.create_task(play(who))
    while len(who.seen) < 3:
        await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert sorted(who.left) == ["g/0", "g/0/context1", "g/0/context2"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


# ---- limits ----


async def test_all_turns_count_and_those_within_the_limit_are_answered() -> None:
    episode = await play(Together(2), limits=EpisodeLimits(max_turns=2))
    assert (episode.outcome, episode.reward, episode.ended_by) == (Outcome.TRUNCATED, 0.0, "max_turns")
    assert [turn.message["content"] for turn in episode.turns] == ["echo asked in 0", "echo asked in 1"]
    assert [m["content"] for m in episode.tail] == ["asked in 2"]
    assert sorted(episode.info["told"]) == ["0: echo asked in 0", "1: echo asked in 1", "max_turns"]


async def test_a_prompt_without_room_is_no_turn() -> None:
    def fill(text: str) -> None:
        if text.endswith("0"):
            raise ContextFull("too long")

    episode = await play(Together(1, fill), limits=EpisodeLimits(max_turns=2))
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    assert [turn.message["content"] for turn in episode.turns] == ["echo asked in 1", "echo asked in 2"]
    assert "0 has no room: too long" in episode.info["told"]
    assert len(episode.info["full_contexts"]) == 1


async def test_an_environment_that_only_asks_what_has_no_room_comes_to_an_end() -> None:
    class AsksOn(Branches):
        async def no_room(self, context: int, reason: str) -> None:
            self._due.append(context)
            await super().no_room(context, reason)

    def fill(text: str) -> None:
        raise ContextFull("too long")

    episode = await play(Together(1, fill), env=AsksOn)
    assert (episode.outcome, episode.ended_by, episode.turns) == (Outcome.TRUNCATED, "max_tokens", ())


class Slow:
    """An agent that takes 1,000 s in context 0, and 1,500 s in the others."""

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        await asyncio.sleep(1000.0 if conversation.request_id == "g/0" else 1500.0)
        return await echo().act(conversation, tools)


def test_the_clocks_stand_still_while_the_agent_answers() -> None:
    limits = EpisodeLimits(step_seconds=5.0, episode_seconds=5.0)
    episode = simulated(World(), play(Slow(), limits=limits))
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error


@pytest.mark.parametrize(("by", "outcome"), [("service", Outcome.TIMEOUT), ("model", Outcome.TRUNCATED)])
def test_the_clock_of_the_episode_runs_while_the_environment_works(by: str, outcome: Outcome) -> None:
    """Each turn that it asks for takes it 20 s, and so does the end."""
    limits = EpisodeLimits(max_turns=9, step_seconds=30.0, episode_seconds=50.0)
    episode = simulated(World(), play(Slow(), limits=limits, works=20.0, time_spent_by=by))
    assert (episode.outcome, episode.ended_by) == (outcome, "episode_seconds")
    # The third further request, which would be the end, came too late.
    assert sorted(turn.message["content"] for turn in episode.turns) == [f"echo asked in {i}" for i in range(3)]


def test_a_step_that_takes_too_long_cancels_what_is_being_answered() -> None:
    limits = EpisodeLimits(step_seconds=10.0, episode_seconds=100.0)
    episode = simulated(World(), play(Slow(), limits=limits, works=20.0))
    assert (episode.outcome, episode.turns) == (Outcome.ENV_FAULT, ())
    assert episode.error == "step took longer than 10 s"
