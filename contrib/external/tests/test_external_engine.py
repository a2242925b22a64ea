"""external with a real engine: a program's stop texts end the sampling, and what is recorded is what the engine saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.generator.local import LocalAgent
from contrib.external.tests.external_playing import opened, playing
from contrib.records.audit import audit, open_decoder
from forge_env.core.episode import write_jsonl
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.registry.agent_spec import AgentSettings, open_agent

LIMITS = EpisodeLimits(max_turns=20, max_tokens=512, max_turn_tokens=40)
SETTINGS = AgentSettings(env="external", max_tokens=512, concurrency=4)


@pytest.mark.slow
@pytest.mark.timeout(240)  # one start of the engine
async def test_a_programs_turns_are_sampled_by_the_engine(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(tiny_model)
    async with open_agent(f"checkpoint:{tmp_path}", SETTINGS) as agent, opened(folder=tmp_path) as factory:
        assert isinstance(agent, LocalAgent)
        async with playing(factory, agent, tmp_path, limits=LIMITS) as program:
            first = await program.chat("How many pens?")
            again = await program.chat("How many pens?", first.choices[0].message, "And boxes?")
            assert again.usage.completion_tokens <= 40
            # A random model writes anything: what it wrote without a stop says what it can be stopped at.
            free = await program.client.completions.create(model="m", prompt="How many", max_tokens=30)
            episode = await program.end()
        text = free.choices[0].text
        stop = text[len(text) // 2 : len(text) // 2 + 1] or "x"
        async with playing(factory, agent, tmp_path, seed=1, limits=LIMITS) as program:
            turns = [await program.chat("How many pens?", max_tokens=40, stop=[stop, "e", "a"]) for _ in range(4)]
            stopped = await program.end()
    for turn in turns:
        assert not {stop, "e", "a"} & set(turn.choices[0].message.content or "")
    assert any(turn.finish_reason == "stop" and len(turn.token_ids) < 40 for turn in stopped.turns)
    assert (episode.outcome, stopped.outcome) == (Outcome.SCORED, Outcome.SCORED)
    assert episode.is_trainable and stopped.is_trainable
    assert [turn.starts_row for turn in episode.turns] == [True, False, True]
    file = tmp_path / "episodes.jsonl"
    write_jsonl(file, [episode, stopped])
    result = audit(file, open_decoder(tiny_model))
    assert (result.problems, result.episodes, result.turns) == ([], 2, 7)
