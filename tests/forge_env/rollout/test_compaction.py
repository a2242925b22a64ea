"""A summary in the place of old turns: what the engine sees, what is trained, and how an episode ends without room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.renderer.rendering import Renderer
from agents.scripted import ScriptedAgent
from agents.token_agent import TokenAgent
from forge_env.core.env import Env
from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import UserError
from forge_env.core.protocols import ContextFull, Conversation, NextTurn
from forge_env.core.turn import Completion
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Sampling, Task, ToolSpec
from forge_env.rollout.compaction import COMPACT_PROMPT, SUMMARY
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from tests.helpers.scripted_policy import ScriptedPolicy

HEAD: tuple[Message, ...] = ({"role": "system", "content": "Count."}, {"role": "user", "content": "Go."})
TASK = Task(prompt=HEAD)
LIMITS = EpisodeLimits(max_turns=12, max_tokens=400, max_turn_tokens=60, compact_at=0.5)


class Walk(Env):
    """Answers each step with "seen K" and some words, and ends after `steps`; each step earns its number."""

    def __init__(self, steps: int = 8, words: int = 12, goes_on: bool = False) -> None:
        self.steps, self.words, self.goes_on, self.done, self.actions = steps, words, goes_on, 0, list[str]()

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        return list(HEAD), {}

    async def step(self, action: Action) -> Any:
        self.done += 1
        self.actions.append(action.text)
        news = [{"role": "user", "content": f"seen {self.done}" + " word" * self.words}]
        return news, float(self.done), self.done == self.steps, False, {}

    async def on_limit(self, limit: str, reason: str = "") -> Any:
        if self.goes_on and limit == "max_tokens":
            return [HEAD[1]], 0.0, False, False, {"next": NextTurn(context=self.done)}
        return None

    def final_info(self) -> Mapping[str, Any]:
        return {"actions": self.actions}


class Policy(ScriptedPolicy):
    """Writes "go N", or the summary that is asked for; it remembers what it saw and wrote, and whether it was asked."""

    def __init__(self, renderer: Renderer, summary: str) -> None:
        super().__init__(self._write)
        self.renderer, self.summary, self.calls = renderer, summary, list[tuple[Completion, bool]]()
        self.requests = set[tuple[str, int | None]]()

    def _is_asked(self, prompt: Any) -> bool:
        return COMPACT_PROMPT in self.renderer.decode(prompt[-120:])

    def _write(self, prompt: Sequence[int]) -> Sequence[int]:
        text = f"{self.summary} {len(self.calls)}" if self._is_asked(prompt) else f"go {len(self.calls)}"
        return self.renderer.write({"role": "assistant", "content": text})

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, request_id: str, session: str) -> Completion:
        done = await super().generate(prompt_ids, sampling, request_id=request_id, session=session)
        done = replace(done, logprobs=-np.arange(1.0, 1 + len(done.token_ids)) - 100 * self.version)
        self.version += 1
        self.requests |= {(request_id, None), ("", sampling.seed)}
        self.calls.append((done, self._is_asked(prompt_ids)))
        return done


async def play(
    model: Path, limits: EpisodeLimits = LIMITS, summary: str = "sum", **options: Any
) -> tuple[Episode, Policy]:
    policy = Policy(Renderer(model), summary)
    async with EnvFactory(Walk, **options) as factory:
        agent = TokenAgent(str(model), policy)
        episode = await run_episode(factory, agent, TASK, seed=3, episode_id="g/0", limits=limits)
    return episode, policy


def check_rows(episode: Episode, policy: Policy) -> None:
    """A slow reference: the rows are what the engine saw, and each sampled token is trained on once."""
    segments: list[list[Completion]] = [[]]
    for call, was_asked in policy.calls:
        segments[-1].append(call)
        if was_asked:
            segments.append([])
    segments = [segment for segment in segments if segment]
    assert len(episode.rows) == len(segments)
    for row, segment in zip(episode.rows, segments, strict=True):
        last = segment[-1]
        assert row.token_ids.tolist() == [*last.prompt_ids.tolist(), *last.token_ids.tolist()]
        expected = {
            len(call.prompt_ids) + i: (call.logprobs[i], call.versions[0][0])
            for call in segment
            for i in range(len(call.token_ids))
        }
        assert np.flatnonzero(row.loss_mask).tolist() == sorted(expected)
        for place, (logprob, version) in expected.items():
            assert (row.generator_logprobs[place], row.versions[place]) == (logprob, version)
    assert len(policy.requests) == 2 * len(policy.calls)  # no two requests share their name or their seed


async def test_a_summary_replaces_the_turns(tiny_model: Path) -> None:
    episode, policy = await play(tiny_model)
    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 36.0, True)
    check_rows(episode, policy)
    assert [turn.is_summary for turn in episode.turns] == [n in (4, 7) for n in range(10)]
    assert episode.info["actions"] == [turn.message["content"] for turn in episode.steps]
    assert [turn.reward for turn in episode.turns] == [1, 2, 3, 4, 0, 5, 6, 0, 7, 8]
    rows = [(row.turn, row.parent, row.kind) for row in episode.lineage]
    assert rows == [(0, None, ""), (5, 4, "summary"), (8, 7, "summary")]
    first, second = (episode.turns[n].observation for n in (5, 8))
    begun: Message = {"role": "user", "content": f"Go.\n\n{SUMMARY}sum 4"}
    last: Message = {"role": "user", "content": "seen 4" + " word" * 12}
    assert first == (HEAD[0], begun, episode.turns[3].message, last)
    assert episode.turns[4].observation == ({**last, "content": f"{last['content']}\n\n{COMPACT_PROMPT}"},)
    assert second[:2] == (HEAD[0], {"role": "user", "content": f"Go.\n\n{SUMMARY}sum 7"})
    for call, was_asked in policy.calls:
        assert (len(call.prompt_ids) > 200) == was_asked
    assert Episode.from_json(episode.to_json()) == episode


async def test_the_last_exchange_is_left_out_if_it_does_not_fit(tiny_model: Path) -> None:
    limits = replace(LIMITS, max_tokens=520, compact_at=0.4)
    episode, policy = await play(tiny_model, limits, "a long summary", steps=3, words=60)
    check_rows(episode, policy)
    assert [turn.is_summary for turn in episode.turns] == [False, True, False, True, False]
    assert [m["role"] for m in episode.turns[2].observation] == ["system", "user"]
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 6.0)


@pytest.mark.parametrize(
    ("limits", "options", "reason", "ended_by", "turns"),
    [
        ({"max_turn_tokens": 8}, {"summary": "a longer text than that"}, "cut off by max_turn_tokens", "max_tokens", 5),
        ({}, {"words": 120}, "no room to write one", "max_tokens", 1),
        ({"compact_at": 0.0}, {}, "", "max_tokens", 7),
        ({"max_turns": 6}, {}, "", "max_turns", 7),
    ],
)
async def test_an_episode_that_finds_no_room_is_truncated(
    tiny_model: Path, limits: Any, options: Any, reason: str, ended_by: str, turns: int
) -> None:
    episode, policy = await play(tiny_model, replace(LIMITS, **limits), **options)
    assert (episode.outcome, episode.ended_by, len(episode.turns)) == (Outcome.TRUNCATED, ended_by, turns)
    assert reason in episode.info.get("no_summary", "") and bool(reason) == ("no_summary" in episode.info)
    assert all(COMPACT_PROMPT not in message["content"] for message in episode.tail)
    check_rows(episode, policy)
    assert len(episode.steps) <= (limits.get("max_turns") or 12)


async def test_an_environment_may_go_on_when_a_summary_was_cut_off(tiny_model: Path) -> None:
    limits = replace(LIMITS, max_turn_tokens=8)
    episode, _ = await play(tiny_model, limits, summary="a longer text than that", goes_on=True)
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 36.0)
    assert [row.kind for row in episode.lineage] == ["", "environment"]


@settings(max_examples=10)
@given(
    steps=st.integers(1, 7),
    words=st.integers(0, 70),
    long=st.integers(0, 25),
    at=st.floats(0.05, 0.95),
    context=st.integers(150, 600),
)
async def test_whatever_the_sizes_are(
    tiny_model: Path, steps: int, words: int, long: int, at: float, context: int
) -> None:
    limits = replace(LIMITS, max_tokens=context, compact_at=at)
    episode, policy = await play(tiny_model, limits, "s " * long, steps=steps, words=words)
    assert episode.outcome in (Outcome.SCORED, Outcome.TRUNCATED)
    assert all(len(row.token_ids) <= context for row in episode.rows)
    assert sum(int(row.loss_mask.sum()) for row in episode.rows) == episode.num_sampled
    assert episode.num_sampled == sum(len(call.token_ids) for call, _ in policy.calls)
    assert episode.info.get("actions", []) == [turn.message["content"] for turn in episode.steps]
    assert [row.parent for row in episode.lineage[1:]] == [row.turn - 1 for row in episode.lineage[1:]]
    assert all(episode.turns[row.turn - 1].is_summary for row in episode.lineage[1:])


class Forgetful:
    """An agent of the user's own, which takes four messages at most and counts no tokens."""

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        messages = conversation.messages
        if len(messages) > 4 and not conversation.is_summarised:
            raise ContextFull
        message: Message = {"role": "assistant", "content": f"{len(messages)} messages"}
        return Turn(kind="text", observation=conversation.observation, message=message), Action(message=message)


async def test_an_agent_without_tokens_is_asked_when_its_context_is_full() -> None:
    async with EnvFactory(Walk, steps=3) as factory:
        episode = await run_episode(factory, Forgetful(), TASK, seed=0, episode_id="e", limits=LIMITS)
    assert [turn.is_summary for turn in episode.turns] == [False, False, True, False]
    assert [len(row.kind) > 0 for row in episode.lineage] == [False, True]
    assert episode.turns[-1].observation[1]["content"] == f"Go.\n\n{SUMMARY}6 messages" and episode.reward == 6.0


class Full:
    """An agent that is full after its first turn, also for a summary, and says no more than that."""

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        if conversation.turns:
            raise ContextFull
        return await Forgetful().act(conversation, tools)


@pytest.mark.parametrize("compact_at", [0.0, 0.5])
async def test_an_agent_that_stays_full_ends_the_episode(compact_at: float) -> None:
    async with EnvFactory(Walk) as factory:
        limits = replace(LIMITS, compact_at=compact_at)
        episode = await run_episode(factory, Full(), TASK, seed=0, episode_id="e", limits=limits)
    assert (episode.outcome, episode.ended_by, len(episode.turns)) == (Outcome.TRUNCATED, "max_tokens", 1)
    assert ("no_summary" in episode.info) == (compact_at > 0)
    assert [message["content"][:6] for message in episode.tail] == ["seen 1"]


async def test_an_expert_demonstrates_summaries(tiny_model: Path) -> None:
    def script(messages: list[Message]) -> Message:
        asked = messages[-1]["content"].endswith(COMPACT_PROMPT)
        return {"role": "assistant", "content": "what I saw" if asked else "go"}

    async with EnvFactory(Walk) as factory:
        agent = ScriptedAgent(script, model=str(tiny_model))
        episode = await run_episode(factory, agent, TASK, seed=0, episode_id="e", limits=LIMITS)
    assert [turn.message["content"] for turn in episode.turns if turn.is_summary] == ["what I saw"] * 2
    assert len(episode.supervised_rows) == 3 and episode.reward == 36.0


class Own(Walk):
    _episode_player: ClassVar = staticmethod(lambda *_: None)


async def test_an_environment_that_keeps_its_conversations_is_refused() -> None:
    async with EnvFactory(Own) as factory:
        with pytest.raises(UserError, match=r"compact_at is 0.5, and .* set compact_at to 0"):
            await run_episode(factory, Forgetful(), TASK, seed=0, episode_id="e", limits=LIMITS)
