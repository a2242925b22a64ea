"""ScriptedAgent: text turns without a model, tokens with one; the same conversation in both cases."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agents.renderer.rendering import Renderer
from agents.renderer.tokenizer import FastTokenizer
from agents.scripted import ScriptedAgent
from envs.math import Math
from forge_env.core.episode import Episode
from forge_env.core.types import EpisodeLimits, Message, Outcome, Sampling
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import GroupSpec, run_episode, run_group
from tests.helpers.scripted_policy import ScriptedPolicy

TASK = Math.tasks(count=1)[0]


async def play(agent: ScriptedAgent) -> Episode:
    async with EnvFactory(Math) as factory:
        return await run_episode(factory, agent, TASK, seed=0, episode_id="e", limits=EpisodeLimits())


async def test_without_a_model_turns_are_text() -> None:
    result = await play(ScriptedAgent(Math.expert))
    assert [turn.kind for turn in result.turns] == ["text", "text"]
    assert (result.reward, result.rows, result.num_sampled, result.is_trainable) == (1.0, (), 0, False)
    [call] = result.turns[0].tool_calls
    assert (call.name, list(call.arguments or {})) == ("calculator", ["expression"])


async def test_with_a_model_turns_are_demonstrations(tiny_model: Path) -> None:
    result = await play(ScriptedAgent(Math.expert, model=str(tiny_model)))
    assert [turn.kind for turn in result.turns] == ["tokens", "tokens"]
    assert not result.is_trainable
    [row] = result.rows
    assert tuple(row.generator_logprobs) == (0.0,) * len(row.token_ids)
    assert set(row.versions) == {-1}
    decode = FastTokenizer(tiny_model).decode
    assert decode(row.token_ids) + "\n" == Renderer(tiny_model).text(result.messages, Math().tools)
    written = [i for i, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    [call] = result.turns[0].tool_calls
    assert decode(written) == (
        f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{call.arguments["expression"]}"}}}}\n'
        f"</tool_call><|im_end|>{TASK.target}<|im_end|>"
    )


# ---- functions that wait, break, or return something else ----


async def play_together(script: Any, count: int, **options: Any) -> list[Episode]:
    async with EnvFactory(Math) as factory:
        group = await run_group(
            factory,
            ScriptedAgent(script, **options),
            GroupSpec(task=TASK, count=count, seed=0, group_id="g"),
            limits=EpisodeLimits(),
        )
    return list(group.episodes)


async def test_a_coroutine_is_a_script() -> None:
    async def solve(messages: list[Message]) -> Message:
        await asyncio.sleep(0)
        message: Message = Math.expert(messages)
        return message

    [episode] = await play_together(solve, 1)
    assert (episode.reward, len(episode.turns)) == (1.0, 2)


async def test_plain_functions_of_several_episodes_wait_at_once() -> None:
    """Each waits until all others are there as well: one that blocked the loop would be alone for ever."""
    meeting = threading.Barrier(4)

    def solve(messages: list[Message]) -> Message:
        meeting.wait(timeout=60)
        message: Message = Math.expert(messages)
        return message

    assert [episode.reward for episode in await play_together(solve, 4)] == [1.0] * 4


async def test_a_plain_function_that_never_ends_is_given_up() -> None:
    began, ended = threading.Event(), threading.Event()

    def think(messages: list[Message]) -> Message:
        began.set()
        try:
            while True:
                pass
        finally:
            ended.set()

    [episode] = await play_together(think, 1, answer_seconds=0.05)
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
    assert episode.error == "PolicyError: ScriptedAgent did not answer within 0.05 s"
    # On a busy machine it may not have begun in time; then it never does.
    assert not began.is_set() or await asyncio.to_thread(ended.wait, 60), "its thread ends too"


def exits(messages: list[Message]) -> Message:
    sys.exit("no key")


async def waits_for_nothing(messages: list[Message]) -> Message:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("script", "words"), [(exits, "SystemExit: no key"), (waits_for_nothing, "KeyboardInterrupt")])
async def test_whatever_a_script_raises_is_a_fault_of_that_episode(script: Any, words: str) -> None:
    for episode in await play_together(script, 2):
        assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
        assert "agent (tests/agents/test_scripted.py:" in episode.error and words in episode.error


def called(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": (None, "returned None, and that is a NoneType and no dict"),
    "a text": ("4", "returned '4', and that is a str and no dict"),
    "no role": ({"content": "4"}, "its role is None"),
    "of the user": ({"role": "user", "content": "4"}, "its role is 'user'"),
    "no content": ({"role": "assistant"}, "its content is None and no text"),
    "a number": ({"role": "assistant", "content": 4}, "its content is 4 and no text"),
    "one call": ({"role": "assistant", "content": "", "tool_calls": {"name": "f"}}, "its tool_calls are a dict and no"),
    "a call by name": ({"role": "assistant", "content": "", "tool_calls": ["f"]}, "a call in it is 'f' and not of the"),
    "a call of nothing": (called(arguments={}), "a call in it is {'id': 'c'"),
    "a list of arguments": (called(name="f", arguments=[1]), "the arguments of its call of f are [1] and no dict"),
    "no arguments": (called(name="f"), "the arguments of its call of f are None and no dict"),
    "a set": ({"role": "assistant", "content": "", "notes": {1}}, "JSON cannot hold it (Object of type set"),
    "a generator": ((message for message in ()), "that is a generator and no dict"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_is_no_assistant_message_is_a_sentence_and_a_fault(case: str) -> None:
    value, words = WRONG[case]
    [episode] = await play_together(lambda messages: value, 1, name="agent.py:play")
    assert episode.outcome is Outcome.INFRA_FAULT
    assert episode.error.startswith("PolicyError: the script agent.py:play returned") and words in episode.error
    assert episode.error.endswith("it must return an assistant message, such as {'role': 'assistant', 'content': '4'}")


async def test_a_script_may_write_a_call_that_nobody_can_read() -> None:
    """As a model may: the environment answers it."""

    def play_badly(messages: list[Message]) -> Any:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": TASK.target}
        return called(name="calculator", arguments='{"expression": ')

    [episode] = await play_together(play_badly, 1)
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0)
    assert "cannot be read" in str(episode.messages)


async def test_a_scripted_policy_keeps_to_its_room_and_says_how_it_ended() -> None:
    policy = ScriptedPolicy(lambda prompt: [*prompt, 2], version=4)
    sampling = Sampling(max_tokens=3, stop_token_ids=(2,))
    done = await policy.generate([7, 8], sampling, request_id="r", session="s")
    assert (done.prompt_ids.tolist(), done.token_ids.tolist(), done.versions, done.finish_reason) == (
        [7, 8],
        [7, 8, 2],
        ((4, 3),),
        "stop",
    )
    cut = await policy.generate([7, 8, 9, 9], sampling, request_id="r", session="s")
    assert (cut.token_ids.tolist(), cut.logprobs.tolist(), cut.finish_reason) == ([7, 8, 9], [0.0] * 3, "length")
