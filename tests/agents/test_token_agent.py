"""TokenAgent with a scripted policy: the episode holds exactly the tokens that the policy saw and wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.renderer.rendering import Renderer
from agents.token_agent import TokenAgent
from envs.math import Math
from forge_env.core.episode import Episode, digest
from forge_env.core.errors import InvariantError, PolicyError
from forge_env.core.protocols import ContextFull, Conversation
from forge_env.core.turn import Completion
from forge_env.core.types import EpisodeLimits, Message, Outcome, Sampling
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from tests.helpers.scripted_policy import Recorder, ScriptedPolicy
from tests.helpers.turns import next_prompt

TASK = Math.tasks(count=1)[0]
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "calculator", "arguments": {"expression": "1 + 1"}}}],
}


async def play(agent: TokenAgent, seed: int = 3, **limits: int) -> Episode:
    async with EnvFactory(Math) as factory:
        return await run_episode(factory, agent, TASK, seed=seed, episode_id="g/0", limits=EpisodeLimits(**limits))


async def test_an_episode_is_token_exact(tiny_model: Path) -> None:
    renderer = Renderer(tiny_model)
    call, answer = renderer.write(CALL), renderer.write({"role": "assistant", "content": TASK.target})
    policy = Recorder([call, answer])
    result = await play(TokenAgent(str(tiny_model), policy))

    assert (result.outcome, result.reward, result.is_trainable) == (Outcome.SCORED, 1.0, True)
    assert [m["content"] for m in result.messages if m["role"] == "tool"] == ["2"]
    [row] = result.rows
    (first, *_), (second, *_) = policy.asked
    assert tuple(row.token_ids) == (*second, *answer)
    assert second[: len(first) + len(call)] == (*first, *call)
    written = [i for i, mask in enumerate(row.loss_mask) if mask]
    assert written == [*range(len(first), len(first) + len(call)), *range(len(second), len(row.token_ids))]
    assert {row.versions[i] for i in written[: len(call)]} == {0}
    assert {row.versions[i] for i in written[len(call) :]} == {1}
    assert row.generator_logprobs[len(first)] == -1.0 and row.generator_logprobs[len(second) + 1] == -2.125
    assert [turn.context_digest for turn in result.turns] == [digest(first), digest(second)]
    assert Episode.from_json(result.to_json()) == result


async def test_the_prompt_and_sampling_that_the_policy_gets(tiny_model: Path) -> None:
    call = Renderer(tiny_model).write(CALL)

    async def asked(seed: int) -> list[tuple[tuple[int, ...], Sampling, str]]:
        policy = Recorder([call] * 3)
        await play(TokenAgent(str(tiny_model), policy, temperature=0.5), seed, max_turns=3, max_turn_tokens=50)
        assert policy.sessions == {"g/0"}
        return policy.asked

    requests = await asked(3)
    stops = Renderer(tiny_model).stop_token_ids
    assert [request_id for _, _, request_id in requests] == ["g/0/0", "g/0/1", "g/0/2"]
    assert {(s.temperature, s.max_tokens, s.stop_token_ids) for _, s, _ in requests} == {(0.5, 50, stops)}
    seeds = [sampling.seed for _, sampling, _ in requests]
    assert len(set(seeds)) == 3
    assert seeds == [sampling.seed for _, sampling, _ in await asked(3)]
    assert not set(seeds) & {sampling.seed for _, sampling, _ in await asked(4)}


@pytest.fixture(scope="module")
def recorded(tiny_model: Path) -> tuple[TokenAgent, Recorder]:
    """One agent for all examples: to read the chat template is what takes time."""
    policy = Recorder([])
    return TokenAgent(str(tiny_model), policy), policy


@given(data=st.data())
def test_an_episode_of_any_sampled_ids_has_valid_digests(
    recorded: tuple[TokenAgent, Recorder], data: st.DataObject
) -> None:
    agent, policy = recorded
    some = st.lists(st.integers(0, 500), min_size=1, max_size=6) | st.just(agent.renderer.write(CALL))
    answers = data.draw(st.lists(some, min_size=4, max_size=4))
    policy.begin(answers)
    result = asyncio.run(play(agent, max_turns=4))
    assert result.outcome in (Outcome.SCORED, Outcome.TRUNCATED)
    assert [list(turn.token_ids) for turn in result.turns] == answers[: len(result.turns)]
    seen: list[int] = []
    for turn, (prompt, *_) in zip(result.turns, policy.asked, strict=True):
        seen = [*([] if turn.starts_row else seen), *turn.prompt_ids]
        assert tuple(seen) == prompt
        seen += turn.token_ids.tolist()


async def test_the_answer_is_given_what_room_is_left(tiny_model: Path) -> None:
    policy = Recorder([[5] * 99])
    agent = TokenAgent(str(tiny_model), policy)
    conversation = Conversation(request_id="c", observation=TASK.prompt, max_turn_tokens=50)
    prompt, *_ = next_prompt(agent.renderer, conversation, ())
    conversation.max_tokens = len(prompt) + 7
    turn, action = await agent.act(conversation, ())
    assert (len(turn.token_ids), turn.finish_reason, action.finish_reason) == (7, "length", "length")


async def test_a_full_context_is_said_and_the_policy_not_asked(tiny_model: Path) -> None:
    policy = Recorder([])
    agent = TokenAgent(str(tiny_model), policy)
    conversation = Conversation(request_id="c", observation=TASK.prompt)
    prompt, *_ = next_prompt(agent.renderer, conversation, ())
    conversation.max_tokens = len(prompt)
    with pytest.raises(ContextFull):
        await agent.act(conversation, ())
    assert policy.asked == []
    assert (await play(agent, max_tokens=20)).outcome is Outcome.TRUNCATED


async def test_a_policy_that_saw_another_prompt_is_refused(tiny_model: Path) -> None:
    class Forgetful(ScriptedPolicy):
        async def generate(self, prompt_ids: Sequence[int], *args: Sampling, **kwargs: str) -> Completion:
            return await super().generate(list(prompt_ids)[1:], *args, **kwargs)

    with pytest.raises(InvariantError, match="what the engine saw"):
        await play(TokenAgent(str(tiny_model), Forgetful(lambda prompt: [5, 2])))


async def test_a_policy_that_fails_is_a_fault_underneath(tiny_model: Path) -> None:
    def fail(prompt: Sequence[int]) -> Sequence[int]:
        raise PolicyError("no replica left")

    result = await play(TokenAgent(str(tiny_model), ScriptedPolicy(fail)))
    assert (result.outcome, result.reward, result.error) == (Outcome.INFRA_FAULT, None, "PolicyError: no replica left")
