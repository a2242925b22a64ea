"""The agent packages of PyPI with their unmodified packages, each in an environment of its own."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from contrib.external.tests.agent_packages import CASES, HERE, MINI_SWE, Case, episode_of
from contrib.external.tests.external_playing import ENGINE_LIMITS, Check, calls, make_long_model, says
from contrib.records.audit import audit, open_decoder
from forge_env.core.episode import write_jsonl
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.registry.agent_spec import AgentSettings, open_agent
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.helpers.own_environment import ROOT, python_with

MEASURED = json.loads((ROOT / "benchmarks" / "results" / "agents.json").read_text())
IDS = [case.id for case in CASES]


@pytest.fixture(autouse=True)
def settings_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home, no traces to OpenAI, and a path on which our `agents` would hide theirs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
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
async def test_an_agent_as_it_is_solves_a_task_with_tools(case: Case, tiny_model: Path, check: Check) -> None:
    episode = await episode_of(case, says(tiny_model, *case.says), EpisodeLimits(max_tokens=40_000))
    told = json.dumps(episode.info.get("program"), indent=1)
    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True), told
    assert "refused_requests" not in episode.info, told
    assert {bool(turn.constrained) for turn in episode.turns} == {case.constrained}
    began = episode.lineage[1:]
    assert (len(episode.turns), len(episode.rows)) == (len(case.says), case.rows), began
    assert {row.kind for row in began} == case.kinds, began
    check(episode)


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


@pytest.mark.slow
@pytest.mark.timeout(500)  # it installs the package
@pytest.mark.parametrize(("mode", "rows"), [("fixed", 1), ("edited", 3)])
async def test_mini_swe_agent_sends_what_its_log_says(mode: str, rows: int, tiny_model: Path) -> None:
    """The logs that test_external_logs.py replays are those of the package."""
    log = [json.loads(line) for line in (HERE / "logs" / f"mini_swe_agent_{mode}.jsonl").read_text().splitlines()]
    recorded = [json.loads(line["response"]["tool_calls"][0]["function"]["arguments"]) for line in log]
    commands = [arguments["command"] for arguments in recorded]
    made = "touch a.txt; " + commands[0]  # the folder of the log had two; that of a program has prompt.txt
    agent = says(tiny_model, *(calls("bash", command=command) for command in [made, *commands[1:]]))
    command = shlex.join([str(python_with(MINI_SWE)), str(HERE / "mini_swe_program.py"), mode])
    task = Task(prompt=({"role": "user", "content": log[0]["request"]["messages"][1]["content"]},))
    async with make("external", command=command) as factory:
        limits = EpisodeLimits(max_tokens=40_000)
        episode = await run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)
    assert (episode.outcome, episode.reward, len(episode.rows)) == (Outcome.SCORED, 1.0, rows), episode.error
    assert {row.kind for row in episode.lineage[1:]} == ({"system_prompt"} if rows > 1 else set())
    sent = [m["content"] for m in episode.messages if m["role"] == "system"]
    assert sent == [line["request"]["messages"][0]["content"] for line in log][:rows]
