"""The budget of a thought: sampled, inserted, sampled, token-exact; and the rows of an agent that thinks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest

from agents.renderer.rendering import Renderer
from agents.token_agent import TokenAgent
from envs.math import Math
from forge_env.core.env import Env
from forge_env.core.episode import Episode, Turn, digest
from forge_env.core.errors import InvariantError
from forge_env.core.protocols import Conversation, NextTurn
from forge_env.core.turn import Completion
from forge_env.core.types import Action, EpisodeLimits, Sampling
from forge_env.evaluation.metrics import row_metrics
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.lockstep import LockstepPolicy, Request, Wave
from forge_env.rollout.rollout import run_episode
from tests.helpers.scripted_policy import Recorder, ScriptedPolicy
from tests.helpers.turns import next_prompt
from trainers.batching.batch import Sample, pack
from trainers.objective.credit import per_target, target_logprobs, turn_targets

TASK = Math.tasks(count=1)[0]
CLOSE = "\n</think>\n\n"


class Writer(Recorder):
    """Writes given texts, one for each request."""

    def __init__(self, renderer: Renderer, *texts: str) -> None:
        super().__init__([renderer.encode(text) for text in texts])


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> Renderer:
    return Renderer(tiny_model, thinking="on")


async def one_turn(
    tiny_model: Path, policy: ScriptedPolicy, asked: NextTurn | None = None, **limits: Any
) -> tuple[Turn, Conversation]:
    agent = TokenAgent(str(tiny_model), policy, thinking="on")
    conversation = Conversation(request_id="c", seed=3, observation=TASK.prompt, next_turn=asked, **limits)
    turn, action = await agent.act(conversation, ())
    assert action.message == turn.message
    return turn, conversation


async def test_a_thought_that_reaches_the_budget_is_ended(tiny_model: Path, renderer: Renderer) -> None:
    thought, answer = "<think>\n" + "hm " * 40, f"{TASK.target}<|im_end|>"
    policy = Writer(renderer, thought, answer)
    turn, _ = await one_turn(tiny_model, policy, max_turn_tokens=60, max_thinking_tokens=12)
    sampled, close, end = renderer.encode(thought)[:12], renderer.encode(CLOSE), renderer.encode(answer)

    assert list(turn.token_ids) == [*sampled, *close, *end]
    assert turn.versions == ((0, 12), (-1, len(close)), (1, len(end)))
    assert tuple(turn.logprobs[12:13]) == (0.0,) and turn.logprobs[12 + len(close)] == -2.0
    (prompt, first, name), (later, second, other) = policy.asked
    assert later == (*prompt, *sampled, *close), "the second prompt holds the thought and its end"
    assert (first.max_tokens, second.max_tokens) == (12, 60 - 12 - len(close))
    assert (name, other) == ("c/0", "c/0+1") and first.seed != second.seed
    assert turn.context_digest == f"{digest(prompt)} {digest(later)}"
    assert turn.message["content"] == TASK.target and turn.message["reasoning_content"].startswith("hm hm")
    assert (turn.finish_reason, turn.num_written) == ("stop", 12 + len(end))


ONE_REQUEST = {
    "no budget": ("<think>\nhm hm hm hm hm", dict[str, int]()),
    "a short thought": ("<think>\nh\n</think>\n\n4<|im_end|>", {"max_thinking_tokens": 30}),
    "an answer without a thought": ("4<|im_end|>", {"max_thinking_tokens": 30}),
    "a turn without room for an answer": ("<think>\n" + "h" * 99, {"max_thinking_tokens": 38}),
    "a context without room for an answer": ("<think>\n" + "h" * 99, {"max_thinking_tokens": 30, "max_tokens": -1}),
}


@pytest.mark.parametrize("case", ONE_REQUEST)
async def test_one_request_is_enough_if_the_budget_ends_no_thought(
    tiny_model: Path, renderer: Renderer, case: str
) -> None:
    text, limits = ONE_REQUEST[case]
    prompt, *_ = next_prompt(renderer, Conversation(request_id="", observation=TASK.prompt), ())
    if "max_tokens" in limits:
        limits = {**limits, "max_tokens": len(prompt) + 33}
    policy = Writer(renderer, text)
    turn, _ = await one_turn(tiny_model, policy, **{"max_turn_tokens": 40, **limits})
    [(asked, sampling, _)] = policy.asked
    whole = renderer.encode(text)
    assert list(turn.token_ids) == whole[: min(40, limits.get("max_tokens", 4096) - len(prompt))]
    assert turn.versions == ((0, len(turn.token_ids)),) and turn.context_digest == digest(asked)
    if len(whole) > 40:
        assert sampling.max_tokens == len(turn.token_ids) and turn.finish_reason == "length"
        assert turn.message["content"] == "" and turn.message["reasoning_content"]


@pytest.mark.parametrize(
    "begin", ["<think>\nh\n</think>\n\nso it is ", "so it is "], ids=["thought over", "no thought"]
)
async def test_an_answer_at_the_budget_goes_on_as_it_is(tiny_model: Path, renderer: Renderer, begin: str) -> None:
    ids = renderer.encode(begin)
    policy = Writer(renderer, begin, "4<|im_end|>")
    turn, _ = await one_turn(tiny_model, policy, max_turn_tokens=60, max_thinking_tokens=len(ids))
    end = renderer.encode("4<|im_end|>")
    assert list(turn.token_ids) == [*ids, *end] and turn.versions == ((0, len(ids)), (1, len(end)))
    assert turn.context_digest == digest(policy.asked[0][0]) and turn.num_written == len(turn.token_ids)
    assert policy.asked[1][0] == (*policy.asked[0][0], *ids)


async def test_a_stop_text_before_the_end_of_the_thought(tiny_model: Path, renderer: Renderer) -> None:
    """A policy may ignore stop texts: the turn is then cut before what was inserted, or in the middle of it."""
    for stop in ("hm", "</think>"):
        policy = Writer(renderer, "<think>\n" + "hm " * 40, "4<|im_end|>")
        asked = NextTurn(stop=(stop,))
        turn, _ = await one_turn(tiny_model, policy, asked, max_turn_tokens=60, max_thinking_tokens=12)
        assert renderer.decode(turn.token_ids).endswith(stop) and turn.finish_reason == "stop"
        assert Episode(task=TASK, turns=(turn,), reward=0.0).num_sampled == (
            12 if stop == "</think>" else turn.num_written
        )


async def test_an_engine_that_saw_another_second_prompt_is_refused(tiny_model: Path, renderer: Renderer) -> None:
    class Forgetful(Writer):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, **names: str) -> Completion:
            done = await super().generate(prompt_ids, sampling, **names)
            return replace(done, prompt_ids=(*prompt_ids[:-1], 7)) if len(self.asked) > 1 else done

    policy = Forgetful(renderer, "<think>\n" + "hm " * 40, "4<|im_end|>")
    with pytest.raises(InvariantError, match="second request"):
        await one_turn(tiny_model, policy, max_turn_tokens=60, max_thinking_tokens=12)


async def test_both_requests_of_a_turn_are_in_lockstep(tiny_model: Path, renderer: Renderer) -> None:
    """The second request of one episode shares a batch with the next turn of another."""
    texts = {"a/0": "<think>\n" + "hm " * 40, "a/0+1": "4<|im_end|>", "b/0": "5<|im_end|>", "b/1": "6<|im_end|>"}
    batches: list[list[str]] = []

    class Batches(ScriptedPolicy):
        async def generate_batch(self, requests: Sequence[Request]) -> list[Completion | Exception]:
            batches.append([request.request_id for request in requests])
            return [await self.answer(request) for request in requests]

        async def answer(self, request: Request) -> Completion:
            policy = ScriptedPolicy(lambda prompt: renderer.encode(texts[request.request_id]))
            return await policy.generate(request.prompt_ids, request.sampling, request_id="", session="")

    agent = TokenAgent(str(tiny_model), LockstepPolicy(Batches(lambda prompt: [])), thinking="on")

    async def play(name: str, turns: int, wave: Wave) -> list[Turn]:
        conversation = Conversation(request_id=name, observation=TASK.prompt, max_turn_tokens=60, max_thinking_tokens=9)
        with wave.episode():
            for _ in range(turns):
                turn, _ = await agent.act(conversation, ())
                conversation.turns.append(turn)
                conversation.observation = ({"role": "user", "content": "sure?"},)
        return conversation.turns

    async with Wave(2) as wave:
        ended, plain = await asyncio.gather(play("a", 1, wave), play("b", 2, wave))
    assert batches == [["a/0", "b/0"], ["a/0+1", "b/1"]]
    assert ended[0].num_written < len(ended[0].token_ids) and len(plain) == 2


# ---- whole episodes ----


async def play(tiny_model: Path, policy: ScriptedPolicy, **limits: int) -> Episode:
    agent = TokenAgent(str(tiny_model), policy, thinking="on")
    async with EnvFactory(Math) as factory:
        return await run_episode(factory, agent, TASK, seed=3, episode_id="e/0", limits=EpisodeLimits(**limits))


CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 1"}}\n</tool_call><|im_end|>'


async def test_an_episode_is_exact_trains_each_sampled_token_once_and_is_read_back(
    tiny_model: Path, renderer: Renderer, tmp_path: Path
) -> None:
    thought = "<think>\n" + "hm " * 40
    policy = Writer(renderer, thought, CALL, thought, f"{TASK.target}<|im_end|>")
    episode = await play(tiny_model, policy, max_turn_tokens=80, max_thinking_tokens=10, max_tokens=1000)
    assert episode.reward == 1.0 and episode.versions == (0, 1, 2, 3)
    [row] = episode.rows  # thoughts stay in a loop of tools
    targets = [i for i, is_target in enumerate(row.loss_mask) if is_target]
    assert len(targets) == episode.num_sampled == sum(turn_targets(episode)) == len(target_logprobs(episode))
    inserted = renderer.encode(CLOSE)
    for turn in episode.turns:
        assert turn.num_written == len(turn.token_ids) - len(inserted)
    written = [renderer.encode(t) for t in (thought, CALL, thought, f"{TASK.target}<|im_end|>")]
    assert [row.token_ids[i] for i in targets] == [*written[0][:10], *written[1], *written[2][:10], *written[3]]
    assert all(row.generator_logprobs[i] == 0.0 for i in range(len(row.token_ids)) if i not in targets)
    assert all((row.versions[i] == -1) != row.loss_mask[i] for i in range(len(row.token_ids)))
    assert (per_target([1.0, 2.0], episode) == 2.0).sum() == episode.turns[1].num_written
    [batch] = pack([Sample(rows=episode.rows)], max_tokens=4096, pack_length=0, pad_id=0)
    assert batch.targets.tolist() == [row.token_ids[i] for i in targets] and batch.units == (len(targets), 1)

    assert Episode.from_json(episode.to_json()) == episode


# ---- rows ----


class Doubts(Env):
    """Asks the same question until its turns are over."""

    def __init__(self) -> None:
        self.turns = 0

    async def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return ({"role": "user", "content": "What is 2 + 2?"},), {}

    async def step(self, action: Action) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.turns += 1
        return ({"role": "user", "content": "Are you sure?"},), 1.0, self.turns == 3, False, {}


async def test_each_question_begins_a_row_without_earlier_thoughts(tiny_model: Path, renderer: Renderer) -> None:
    """Each question begins a row without the thoughts before it; every sampled token is a target in exactly one row."""
    texts = [f"<think>\nlet me see {i}\n</think>\n\n{i}<|im_end|>" for i in range(3)]
    agent = TokenAgent(str(tiny_model), Writer(renderer, *texts), thinking="on")
    async with EnvFactory(Doubts) as factory:
        episode = await run_episode(factory, agent, TASK, seed=0, episode_id="e/0", limits=EpisodeLimits())
    rows = [renderer.decode(row.token_ids) for row in episode.rows]
    assert [row.count("<think>") for row in rows] == [1, 1, 1] and "let me see 0" not in rows[2]
    targets = [
        [t for t, is_target in zip(row.token_ids, row.loss_mask, strict=True) if is_target] for row in episode.rows
    ]
    assert targets == [renderer.encode(text) for text in texts]
    assert episode.is_trainable and Episode.from_json(episode.to_json()) == episode

    whole = [tuple(row.token_ids) for row in episode.rows]
    same = [
        sum(1 for _ in takewhile(lambda ids: ids[0] == ids[1], zip(*pair, strict=False))) for pair in pairwise(whole)
    ]
    assert episode.info["repeated_tokens"] == sum(same) > 0
    metrics = row_metrics([episode])
    assert metrics["rollout/rows_per_episode"] == 3.0
    assert metrics["rollout/repeated_tokens"] == sum(same) / sum(map(len, whole))


async def test_one_row_repeats_nothing(tiny_model: Path, renderer: Renderer) -> None:
    policy = Writer(renderer, "<think>\nhm\n</think>\n\n" + CALL, f"{TASK.target}<|im_end|>")
    episode = await play(tiny_model, policy)
    assert "repeated_tokens" not in episode.info
    assert row_metrics([episode]) == {"rollout/rows_per_episode": 1.0, "rollout/repeated_tokens": 0.0}
    assert row_metrics([]) == {"rollout/rows_per_episode": 0.0, "rollout/repeated_tokens": 0.0}
