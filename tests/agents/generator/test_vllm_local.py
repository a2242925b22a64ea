"""The engine in this process, opened by name: its episodes are token-exact, repeat bit by bit, and it is closed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agents.generator.local import LocalAgent, _engine
from agents.generator.settings import EngineSettings
from agents.model_folder import context_length, find_model
from forge_env.core.episode import Episode, Turn, read_jsonl
from forge_env.core.errors import PolicyError, UserError
from forge_env.core.types import EpisodeLimits, Outcome, Sampling, Task
from forge_env.registry.agent_spec import AgentSettings, open_agent
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from tests.helpers.model_folders import change_weights

LIMITS = EpisodeLimits(max_turns=2, max_turn_tokens=12, max_tokens=100_000)
SETTINGS = AgentSettings(env="math", deterministic=True, max_tokens=100_000, concurrency=4)


@pytest.mark.slow
@pytest.mark.timeout(240)  # one start of the engine
async def test_a_checkpoint_is_an_agent_that_repeats_exactly(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(tiny_model)
    factory = make("math")
    tasks = list(factory.tasks("test", count=4))
    async with open_agent(f"checkpoint:{tmp_path}", SETTINGS) as agent:
        assert isinstance(agent, LocalAgent)
        forward = await play(factory, agent, tasks)
        backward = await play(factory, agent, tasks[::-1])
        assert [tokens(e) for e in forward] == [tokens(e) for e in backward[::-1]], "whatever else ran, and before it"
        policy = agent._policy
    assert {e.outcome for e in forward} <= {Outcome.SCORED, Outcome.TRUNCATED}
    assert all(e.is_trainable and 0 < e.num_sampled <= 24 for e in forward)
    with pytest.raises(PolicyError, match="it was closed"):
        await policy.generate([1, 2], Sampling(max_tokens=2), request_id="late", session="late")


async def play(factory: EnvFactory, agent: LocalAgent, tasks: list[Task]) -> list[Episode]:
    plays = [
        run_episode(factory, agent, task, seed=0, episode_id=f"{task.id}/{tasks.index(task)}", limits=LIMITS)
        for task in tasks
    ]
    return await asyncio.gather(*plays)


def tokens(episode: Episode) -> list[Turn]:
    """Everything but the clock: ids, logprobs to the last bit, digests."""
    return [replace(turn, policy_seconds=0.0, env_seconds=0.0, tool_uses=()) for turn in episode.turns]


def test_the_limit_is_the_models_context(tiny_model: Path) -> None:
    assert context_length(tiny_model) == 1024
    assert find_model(str(tiny_model)) == tiny_model


async def test_greedy_and_hot_contradict_each_other() -> None:
    with pytest.raises(UserError, match="--deterministic samples greedily, and --temperature is 0.7"):
        async with open_agent("vllm:anything", replace(SETTINGS, temperature=0.7)):
            pass


async def test_weights_that_are_not_finite_are_refused_before_the_engine_starts(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    change_weights(folder, model__norm__weight=torch.tensor([1.0, torch.nan]))
    with pytest.raises(UserError, match=r"values that are not finite in model\.norm\.weight"):
        async with open_agent(f"vllm:{folder}", SETTINGS):
            pass


def test_an_engine_may_be_silent_for_the_seconds_of_the_settings(tiny_model: Path) -> None:
    assert _engine(SETTINGS, 64, folder=tiny_model).stall_seconds == EngineSettings().stall_seconds
    assert _engine(replace(SETTINGS, idle_seconds=7.0), 64, folder=tiny_model).stall_seconds == 7.0


@pytest.mark.slow
@pytest.mark.timeout(240)  # one start of the engine
async def test_an_answer_takes_no_longer_than_the_settings_say(tiny_model: Path) -> None:
    settings = replace(SETTINGS, deterministic=False, answer_seconds=1e-6)
    factory = make("math")
    async with open_agent(f"vllm:{tiny_model}", settings) as agent:
        assert isinstance(agent, LocalAgent)
        [episode] = await play(factory, agent, list(factory.tasks("test", count=1)))
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
    assert episode.error == "PolicyError: LocalAgent did not answer within 1e-06 s"


@pytest.mark.slow
async def test_an_engine_that_does_not_start_is_one_sentence(tiny_model: Path, tmp_path: Path) -> None:
    """A folder whose weights have other shapes than its config says."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    change_weights(folder, model__norm__weight=torch.ones(3))
    with pytest.raises(PolicyError, match="the engine did not start with"):
        async with open_agent(f"vllm:{folder}", SETTINGS):
            pass


@pytest.mark.slow
@pytest.mark.timeout(600)  # two starts of the engine
def test_a_deterministic_evaluation_repeats_in_another_process(tiny_model: Path, tmp_path: Path) -> None:
    """Bit by bit, however many episodes are asked for at once."""
    limits = ["--max-turns", "2", "--max-turn-tokens", "12"]
    runs = []
    for name, at_once in (("one", "1"), ("many", "4")):
        command = ["eval", "--env", "math", "--agent", f"vllm:{tiny_model}", "--deterministic", *limits]
        command += ["--tasks", "3", "-n", "2", "--concurrency", at_once, "--out", name, "--json"]
        done = forge_env(command, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") == 1 and json.loads(done.stdout)["episodes"] == 6
        runs.append({e.id: tokens(e) for e in read_jsonl(tmp_path / name / "episodes.jsonl")})
    assert runs[0] == runs[1] and len(runs[0]) == 6
    assert any(len(turns) > 0 and len(turns[0].logprobs) for turns in runs[0].values())


def forge_env(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        [sys.executable, "-m", "forge_env", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environ,
        timeout=280,
    )
