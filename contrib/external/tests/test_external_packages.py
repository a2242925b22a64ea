"""An agent package from PyPI in an interpreter of its own: several install a top-level `agents`, as we do."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from contrib.external.tests.agent_packages import MINI_SWE, OPENAI_AGENTS
from contrib.external.tests.external_playing import calls, says
from contrib.records.audit import audit, open_decoder
from forge_env.core.episode import write_jsonl
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.helpers.own_environment import python_with

ROOT = Path(__file__).resolve().parents[3]
LOGS = Path(__file__).with_name("logs")
PROGRAM = Path(__file__).with_name("openai_agents_program.py")


@pytest.fixture
def interpreter() -> Path:
    """The Python of an environment that holds openai-agents."""
    return python_with(OPENAI_AGENTS)


async def test_openai_agents_runs_as_it_is_and_leaves_exact_tokens(
    interpreter: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # ours would hide the package's `agents`
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")  # it would send its traces to OpenAI
    agent = says(tiny_model, calls("add", a=19, b=23), "42", calls("add", a=42, b=1), "43")
    task = Task(prompt=({"role": "user", "content": "What is 19 + 23?"},))
    async with make("external", command=shlex.join([str(interpreter), str(PROGRAM), "default"])) as factory:
        limits = EpisodeLimits(max_tokens=10_000)
        episode = await run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)

    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True), episode.error
    assert '"42", "43"' in episode.info["program"]["stdout"]
    assert "site-packages/agents/__init__.py" in episode.info["program"]["stdout"]
    assert len(episode.rows) == 1, "its second run goes on with the messages of the first"
    asked = [prompt for prompt, _, _ in agent._policy.asked]  # type: ignore[attr-defined]
    assert tuple(episode.rows[0].token_ids) == (*asked[-1], *episode.turns[-1].token_ids)
    assert [m["content"] for m in episode.messages if m["role"] == "tool"] == ["42", "43"]
    assert [m["content"] for m in episode.messages if m["role"] == "system"] == ["Add with the tool."]
    file = tmp_path / "episodes.jsonl"
    write_jsonl(file, [episode])
    assert audit(file, open_decoder(tiny_model)).problems == []


@pytest.mark.slow
@pytest.mark.timeout(500)  # it installs the package
@pytest.mark.parametrize(("mode", "rows"), [("fixed", 1), ("edited", 3)])
async def test_mini_swe_agent_sends_what_its_log_says(
    mode: str, rows: int, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs that test_external_logs.py replays are those of the package."""
    log = [json.loads(line) for line in (LOGS / f"mini_swe_agent_{mode}.jsonl").read_text().splitlines()]
    recorded = [json.loads(line["response"]["tool_calls"][0]["function"]["arguments"]) for line in log]
    commands = [arguments["command"] for arguments in recorded]
    made = "touch a.txt; " + commands[0]  # the folder of the log had two; that of a program has prompt.txt
    agent = says(tiny_model, *(calls("bash", command=command) for command in [made, *commands[1:]]))
    monkeypatch.setenv("HOME", str(tmp_path))
    command = shlex.join([str(python_with(MINI_SWE)), str(PROGRAM.with_name("mini_swe_program.py")), mode])
    task = Task(prompt=({"role": "user", "content": log[0]["request"]["messages"][1]["content"]},))
    async with make("external", command=command) as factory:
        limits = EpisodeLimits(max_tokens=40_000)
        episode = await run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)
    assert (episode.outcome, episode.reward, len(episode.rows)) == (Outcome.SCORED, 1.0, rows), episode.error
    assert {row.kind for row in episode.lineage[1:]} == ({"system_prompt"} if rows > 1 else set())
    sent = [m["content"] for m in episode.messages if m["role"] == "system"]
    assert sent == [line["request"]["messages"][0]["content"] for line in log][:rows]
