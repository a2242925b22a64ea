"""ScriptedAgent: text turns without a model, tokens with one; the same conversation in both cases."""

from __future__ import annotations

from pathlib import Path

from agents.rendering import Renderer
from agents.scripted import ScriptedAgent, ScriptedPolicy
from agents.tokenizer import FastTokenizer
from envs.math import Math
from forge_env.episode import Episode
from forge_env.factory import EnvFactory
from forge_env.rollout import run_episode
from forge_env.types import EpisodeLimits, Sampling

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
    assert row.logprobs == (0.0,) * len(row.token_ids)
    assert set(row.versions) == {-1}
    decode = FastTokenizer(tiny_model).decode
    assert decode(row.token_ids) + "\n" == Renderer(tiny_model).text(result.messages, Math().tools)
    written = [i for i, mask in zip(row.token_ids, row.mask, strict=True) if mask]
    [call] = result.turns[0].tool_calls
    assert decode(written) == (
        f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{call.arguments["expression"]}"}}}}\n'
        f"</tool_call><|im_end|>{TASK.target}<|im_end|>"
    )


async def test_a_scripted_policy_keeps_to_its_room_and_says_how_it_ended() -> None:
    policy = ScriptedPolicy(lambda prompt: [*prompt, 2], version=4)
    sampling = Sampling(max_tokens=3, stop_token_ids=(2,))
    done = await policy.generate([7, 8], sampling, request_id="r", session="s")
    assert (done.prompt_ids, done.token_ids, done.versions, done.finish_reason) == (
        (7, 8),
        (7, 8, 2),
        ((4, 3),),
        "stop",
    )
    cut = await policy.generate([7, 8, 9, 9], sampling, request_id="r", session="s")
    assert (cut.token_ids, cut.logprobs, cut.finish_reason) == ((7, 8, 9), (0.0,) * 3, "length")
