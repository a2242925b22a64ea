"""Requests of a program that come at once: they are in flight at once, and each is a row."""

from __future__ import annotations

import ast
import asyncio
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.renderer.rendering import Renderer
from agents.scripted import ScriptedAgent
from agents.token_agent import TokenAgent
from contrib.external.tests.external_playing import Check
from contrib.external.tests.test_external import TASK
from contrib.records.replay import replay
from contrib.records.run_settings import RunSettings
from forge_env.core.episode import Episode, Turn
from forge_env.core.protocols import Agent, ContextFull, Conversation
from forge_env.core.turn import Completion
from forge_env.core.types import Action, EpisodeLimits, Outcome, Sampling, ToolSpec
from forge_env.evaluation.metrics import row_metrics
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from forge_env.utils.deadlines import Deadline
from tests.helpers.scripted_policy import ScriptedPolicy

PROGRAM = Path(__file__).with_name("parallel_program.py")
LIMITS = EpisodeLimits(max_turns=20, max_tokens=2000, max_turn_tokens=40)


def command(what: str) -> str:
    return shlex.join([sys.executable, "-S", str(PROGRAM), what])


async def play(what: str, agent: Agent, limits: EpisodeLimits = LIMITS) -> Episode:
    before = asyncio.all_tasks()
    async with make("external", command=command(what)) as factory:
        episode = await run_episode(factory, agent, TASK, seed=5, episode_id="e", limits=limits)
    assert asyncio.all_tasks() <= before, "nothing is left behind"
    return episode


class Meeting:
    """Those who come wait until `count` are there at once; who comes later waits no more."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._all_here = asyncio.Event()

    async def join(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._all_here.set()
        await self._all_here.wait()


class MeetingPolicy(ScriptedPolicy):
    """Answers nothing until `count` requests are in flight at once."""

    def __init__(self, model: Path, count: int) -> None:
        answer = tuple(Renderer(model).write({"role": "assistant", "content": "46 pens"}))
        super().__init__(lambda prompt: answer)
        self._meeting = Meeting(count)
        self.sessions: list[str] = []
        self.seeds: list[int | None] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        self.sessions.append(session)
        self.seeds.append(sampling.seed)
        await self._meeting.join()
        return await super().generate(prompt_ids, sampling, request_id=request_id, session=session)


class Meets:
    """An agent of messages that waits as `MeetingPolicy` does; what it does then depends on the last message."""

    def __init__(self, count: int, then: Callable[[str], None] = lambda text: None) -> None:
        self._meeting = Meeting(count)
        self._then = then
        self.left: list[str] = []

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        text = conversation.messages[-1]["content"]
        try:
            await self._meeting.join()
            self._then(text)
            if text == "task left alone":
                await asyncio.Event().wait()

            async def say(messages: Any) -> Any:
                return {"role": "assistant", "content": f"echo {text}"}

            return await ScriptedAgent(say).act(conversation, tools)
        finally:
            self.left.append(text)


def kinds(episode: Episode) -> list[str]:
    return [row.kind for row in episode.lineage if row.kind]


async def test_helpers_are_in_flight_at_once_and_each_is_a_row(check: Check, tiny_model: Path) -> None:
    policy = MeetingPolicy(tiny_model, 3)
    episode = await play("helpers", TokenAgent(str(tiny_model), policy))
    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True), episode.error
    assert (len(episode.turns), len(episode.rows), episode.info["turns_at_once"]) == (7, 4, 3)
    asked = [[m["content"] for m in turn.observation] for turn in episode.turns]
    helpers = sorted([asked[i], asked[i + 1]] for i in (0, 2, 4))
    assert helpers == [[["You help.", f"task {name}"], [f"more {name}"]] for name in "abc"]
    assert asked[6][0].startswith("the reports: ")
    assert sorted(policy.sessions[:3]) == ["e", "e/context1", "e/context2"]
    assert set(policy.sessions) == {"e", "e/context1", "e/context2", "e/context3"}
    assert len(set(policy.seeds)) == 7
    assert kinds(episode) == ["independent"] * 3
    assert row_metrics([episode])["rollout/row_began/independent"] == 3.0
    assert [turn.reward for turn in episode.turns] == [0.0] * 6 + [1.0]
    check(episode)
    again = await replay(episode, RunSettings(env="external", options={"command": command("helpers")}, limits=LIMITS))
    assert again.same and len(again.turns) == 7, again.differences


async def test_a_conversation_that_forks_is_continued_once(check: Check, tiny_model: Path) -> None:
    class ThenTwo(MeetingPolicy):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, **names: str) -> Completion:  # type: ignore[override]
            if not self.sessions:
                self.sessions.append(names["session"])
                return await ScriptedPolicy.generate(self, prompt_ids, sampling, **names)
            return await super().generate(prompt_ids, sampling, **names)  # type: ignore[arg-type]

    episode = await play("forks", TokenAgent(str(tiny_model), ThenTwo(tiny_model, 2)))
    assert (episode.outcome, len(episode.turns), len(episode.rows)) == (Outcome.SCORED, 3, 2), episode.error
    assert sorted(turn.starts_row for turn in episode.turns) == [False, True, True]
    assert kinds(episode) == ["parallel"]
    assert "begins with the same 2 messages was being answered" in "".join(row.why for row in episode.lineage)
    assert episode.info["repeated_tokens"] > 0
    check(episode)


@pytest.mark.parametrize(("what", "rows"), [("samples", 3), ("completions", 2)])
async def test_requests_of_one_prompt_and_plain_prompts_run_at_once(
    check: Check, what: str, rows: int, tiny_model: Path
) -> None:
    policy = MeetingPolicy(tiny_model, rows)
    episode = await play(what, TokenAgent(str(tiny_model), policy))
    assert (episode.outcome, len(episode.rows), len(set(policy.sessions))) == (Outcome.SCORED, rows, rows)
    assert len(kinds(episode)) == rows - 1
    check(episode)


async def test_a_program_that_ends_while_it_is_answered_is_a_fault() -> None:
    agent = Meets(2)
    episode = await play("leaves", agent)
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    assert "was still waiting for its answer when the program ended" in episode.error
    assert sorted(agent.left) == ["task answered", "task left alone"]


async def test_a_prompt_without_room_is_refused_while_others_are_answered() -> None:
    def fill(text: str) -> None:
        if text == "task b":
            raise ContextFull("it has 9 tokens")

    episode = await play("tries", Meets(3, fill))
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.SCORED, 1.0, 2), episode.error
    said = ast.literal_eval(episode.info["program"]["stdout"])
    assert said == ["HTTP 400 context_length_exceeded", "echo task a", "echo task c"]
    again = await replay(episode, RunSettings(env="external", options={"command": command("tries")}, limits=LIMITS))
    assert not again.stop_reason and again.replayed.info["program"]["stdout"] == episode.info["program"]["stdout"]


async def test_the_clocks_stand_still_while_a_request_is_answered() -> None:
    async with make("external", command=command("samples")) as factory:
        env: Any = factory.make()
        await env.reset(seed=0, options={"task": TASK})
        for _ in range(2):
            await env.listen()  # the requests that come while the first one is answered
        env._limits = EpisodeLimits(step_seconds=0.01)
        deadline = Deadline(0.01)
        listening = asyncio.create_task(deadline.run(env.listen()))
        done, _ = await asyncio.wait({listening}, timeout=0.1)
        assert not done and not deadline.has_expired
        await env.close()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
