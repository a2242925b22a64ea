"""verifiers:ID with the package verifiers from the index, on three environments written with its SDK."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from contrib.check import run_checks
from contrib.check.strategies import StrategyAgent, actions_in_order, final_answer, tool_calls
from contrib.external.tests.external_playing import says
from contrib.records.audit import audit, open_decoder
from envs.messages import call
from forge_env.core.episode import Episode, write_jsonl
from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from tests.envs.own_interpreter import ROOT, own_interpreter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LIMITS = EpisodeLimits(max_turns=12, max_tokens=20_000, step_seconds=300.0, episode_seconds=900.0)
VERSION = "verifiers==0.4.0"


@pytest.fixture(scope="module")
def python() -> str:
    return str(own_interpreter(VERSION, paths=[Path(__file__).with_name("packages")]))


async def play(factory: EnvFactory, task: Task, *actions: Any) -> Episode:
    agent = StrategyAgent(actions_in_order(*actions))
    return await run_episode(factory, agent, task, seed=0, episode_id="e", limits=LIMITS)


@pytest.mark.parametrize("id_", ["forge_sums", "forge_guess", "forge_shelf"])
async def test_the_contract_holds(python: str, id_: str) -> None:
    report = await run_checks(make(f"verifiers:{id_}", python=python), tasks=2, seconds=1500)
    assert [row for row in report.rows if row.ok is False] == []


async def test_reward_metrics_limits_and_stops_come_along(python: str) -> None:
    async with make("verifiers:forge_guess", python=python) as factory:
        assert factory.declared_limits() == {"max_turns": 6}
        task = factory.tasks("train", count=1)[0]
        number = str(task.metadata["data"]["number"])
        found = await play(factory, task, final_answer("0"), final_answer("9"), final_answer(number))
        lost = await play(factory, task, *[final_answer("0")] * 12)
        assert (found.outcome, found.reward, found.success) == (Outcome.SCORED, 1.0, True), found.error
        assert found.rewards == {"found": 0.75, "quickly": 0.25}
        assert found.info["verifiers"]["metrics"] == {"guesses": 3.0}
        assert [m["content"] for m in found.messages][2:] == ["0", "No, higher.", "9", "No, lower.", number]
        assert (lost.outcome, lost.ended_by, lost.reward) == (Outcome.TRUNCATED, "max_turns", 0.0), lost.error


async def test_tools_of_a_shared_server_and_exact_tokens(python: str, tiny_model: Path, tmp_path: Path) -> None:
    async with make("verifiers:forge_shelf", python=python, test_config='{"taskset": {"split": "test"}}') as factory:
        task = factory.tasks("test", count=1)[0]
        assert "(test)" in task.prompt[-1]["content"]
        one, other = re.search(r"a (\w+) and a (\w+)", task.prompt[-1]["content"]).groups()  # type: ignore[union-attr]
        names: list[str] = []

        async def look(conversation: Any, tools: Any) -> Any:
            names.extend(tool["function"]["name"] for tool in tools)
            return tool_calls((names[0], {"name": one}), ("nix", {})) if not conversation.turns else final_answer("0")

        looked = await run_episode(factory, StrategyAgent(look), task, seed=0, episode_id="l", limits=LIMITS)
        assert (looked.outcome, looked.reward) == (Outcome.SCORED, 0.0), looked.error
        asks = [call(names[0], name=fruit) for fruit in (one, other)]
        agent = says(tiny_model, *asks, str(task.target))
        episode = await run_episode(factory, agent, task, seed=0, episode_id="e", limits=LIMITS)
    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True), episode.error
    assert episode.info["verifiers"]["metrics"] == {"calls": 2.0}
    assert len(episode.rows) == 1, "a conversation that only grows is one row"
    asked = [prompt for prompt, _, _ in agent._policy.asked]  # type: ignore[attr-defined]
    assert tuple(episode.rows[0].token_ids) == (*asked[-1], *episode.turns[-1].token_ids)
    write_jsonl(tmp_path / "episodes.jsonl", [episode])
    assert audit(tmp_path / "episodes.jsonl", open_decoder(tiny_model)).problems == []


async def test_the_harness_that_ships_with_the_package_gives_the_same(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", os.environ.get("UV_CACHE_DIR", str(ROOT / ".cache" / "uv")))
    monkeypatch.setenv("HOME", str(tmp_path))  # where verifiers keeps that program
    # It prepares the program of a harness with uv, and would fetch an installer of uv where there is none.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    async with make("verifiers:forge_sums", python=python, harness="null") as factory:
        task = factory.tasks("train", count=1)[0]
        episode = await play(factory, task, final_answer(str(task.target)))
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    assert [m["content"] for m in episode.messages] == [task.prompt[0]["content"], task.target]


def test_mistakes_are_one_sentence(python: str) -> None:
    for options, id_, message in (
        ({}, "forge_nix", "verifiers cannot load 'forge_nix': taskset 'forge_nix' not found"),
        ({"harness": "bash"}, "forge_sums", "the harness 'bash' lets the model run commands on this machine"),
        ({"harness": "nix"}, "forge_sums", "harness 'nix' not found"),
        ({"config": '{"taskset": {"levle": 2}}'}, "forge_sums", "levle"),
        ({"config": '{"id": "user-sim"}'}, "forge_sums", "the environment has the roles assistant, user, and 2 of"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            make(f"verifiers:{id_}", python=python, **options).tasks(count=1)
