"""The agent packages of PyPI with their unmodified packages, each in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contrib.external.tests.agent_packages import CASES, Case, episode_of
from contrib.external.tests.external_playing import ENGINE_LIMITS, make_long_model, says
from contrib.records.audit import audit, open_decoder
from forge_env.core.episode import write_jsonl
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.registry.agent_spec import AgentSettings, open_agent
from tests.helpers.own_environment import ROOT, python_with

MEASURED = json.loads((ROOT / "benchmarks" / "results" / "agents.json").read_text())
IDS = [case.id for case in CASES]


@pytest.fixture(autouse=True)
def settings_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What some packages read: a home, and whether they send traces to OpenAI."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_page_says_what_was_measured(case: Case) -> None:
    measured = MEASURED[case.id]
    assert (measured["package"], measured["reward"]) == (", ".join(case.packages), 1.0)
    assert (measured["rows"], {row["kind"] for row in measured["row_began"]}) == (case.rows, case.kinds)
    lines = (ROOT / "benchmarks" / "results" / "agents.md").read_text().splitlines()
    name, version = case.package
    rows = [line for line in lines if line.startswith((f"| {name} | {version} ", f"| {name}, "))]
    assert rows and all(version in line and f"| {case.rows}" in line for line in rows)


@pytest.mark.slow
@pytest.mark.timeout(500)  # it installs the packages
@pytest.mark.parametrize("case", CASES, ids=IDS)
async def test_an_agent_as_it_is_solves_a_task_with_tools(case: Case, tiny_model: Path, tmp_path: Path) -> None:
    episode = await episode_of(case, says(tiny_model, *case.says), EpisodeLimits(max_tokens=40_000))
    told = json.dumps(episode.info.get("program"), indent=1)
    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True), told
    assert "refused_requests" not in episode.info, told
    assert {bool(turn.constrained) for turn in episode.turns} == {case.constrained}
    began = episode.lineage[1:]
    assert (len(episode.turns), len(episode.rows)) == (len(case.says), case.rows), began
    assert {row.kind for row in began} == case.kinds, began
    file = tmp_path / "episodes.jsonl"
    write_jsonl(file, [episode])
    assert audit(file, open_decoder(tiny_model)).problems == []


@pytest.mark.slow
@pytest.mark.timeout(500)  # it installs the packages, and starts an engine
async def test_a_real_engine_answers_every_agent_and_its_tokens_are_exact(tiny_model: Path, tmp_path: Path) -> None:
    """A random model solves nothing: what is asserted is that requests are answered, and what was recorded."""
    for case in CASES:
        python_with(*case.packages)
    make_long_model(tiny_model, tmp_path / "model")
    settings = AgentSettings(env="external", max_tokens=ENGINE_LIMITS.max_tokens, concurrency=1)
    async with open_agent(f"checkpoint:{tmp_path}", settings) as agent:
        episodes = [await episode_of(case, agent, ENGINE_LIMITS) for case in CASES]
    told = {e.id: (e.outcome, e.error, e.info.get("refused_requests"), len(e.turns)) for e in episodes}
    assert all(e.outcome in (Outcome.SCORED, Outcome.TRUNCATED) and e.turns for e in episodes), told
    assert not any("refused_requests" in e.info for e in episodes), told
    file = tmp_path / "episodes.jsonl"
    write_jsonl(file, episodes)
    result = audit(file, open_decoder(tiny_model))
    assert (result.problems, result.episodes) == ([], len(CASES)), told
    assert result.decoded_turns == result.turns == sum(len(e.turns) for e in episodes)
