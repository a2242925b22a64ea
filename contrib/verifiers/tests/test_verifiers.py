"""verifiers:ID against a small worker that speaks the worker's protocol; test_verifiers_package.py runs the package."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contrib.check import run_checks
from contrib.check.strategies import StrategyAgent, actions_in_order, final_answer
from contrib.common.http_clients import no_proxy
from contrib.verifiers import interpreter, worker
from contrib.verifiers.env import _merge
from contrib.verifiers.tests import small_worker
from forge_env.core.episode import Episode
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.protocols import ContextFull
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter.worker, "__file__", small_worker.__file__)
    interpreter.describe.cache_clear()


def small(id_: str = "small", **options: Any) -> EnvFactory:
    return make(f"verifiers:{id_}", python=sys.executable, **options)


def behaving(task: Task, behave: str) -> Task:
    return replace(task, metadata={**task.metadata, "data": {**task.metadata["data"], "behave": behave}})


async def play(factory: EnvFactory, task: Task, *answers: str, **limits: float) -> Episode:
    agent = StrategyAgent(actions_in_order(*map(final_answer, answers)))
    return await run_episode(factory, agent, task, seed=0, episode_id="e", limits=EpisodeLimits(**limits))


async def test_a_rollout_is_an_episode_with_its_reward_and_metrics() -> None:
    async with small() as factory:
        assert factory.declared_limits() == {"max_turns": 3}
        task = factory.tasks("train", count=1)[0]
        assert [m["role"] for m in task.prompt] == ["system", "user"]
        right = str(task.target)
        episode = await play(factory, task, "x", right)
        assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.75), episode.error
        assert episode.rewards == {"right": 0.75, "quick": 0.0}
        assert episode.success is False, "success_reward is 1"
        assert episode.info["verifiers"]["metrics"] == {"tries": 2.0}
        assert [m["content"] for m in episode.messages] == ["Be brief.", f"Say {right}.", "x", "No.", right]
        stopped = await play(factory, behaving(task, "stop"), "a", "b", "c")
        assert (stopped.outcome, stopped.ended_by, stopped.reward) == (Outcome.TRUNCATED, "max_turns", 0.0)
        several = await asyncio.gather(*(play(factory, task, right) for _ in range(12)))
        assert [e.reward for e in several] == [1.0] * 12
    async with small(success_reward=0.75 + 1e-12) as factory:
        assert (await play(factory, task, "x", right)).success is True, "but for rounding"


@pytest.mark.parametrize(
    ("behave", "outcome", "reason"),
    [
        ("fail", Outcome.ENV_FAULT, "the rollout of verifiers failed: TaskError: the scoring broke"),
        ("mute", Outcome.ENV_FAULT, "asked the model nothing; it wrote: TaskError: nothing to do"),
        ("die", Outcome.INFRA_FAULT, "the process of verifiers ended in the middle of its work"),
        ("hang", Outcome.ENV_FAULT, "the program did nothing that could be seen for 0.9 s"),
    ],
)
async def test_what_breaks_is_a_fault_and_the_next_episode_works(behave: str, outcome: Outcome, reason: str) -> None:
    async with small() as factory:
        task = factory.tasks("train", count=1)[0]
        episode = await play(factory, behaving(task, behave), "x", step_seconds=1.0 if behave == "hang" else 60.0)
        assert (episode.outcome, episode.reward) == (outcome, None)
        assert reason in episode.error
        assert (await play(factory, task, str(task.target))).reward == 1.0


async def test_a_result_that_is_no_json_is_a_failure_of_its_own_rollout() -> None:
    async def result(reward: Any) -> dict[str, Any]:
        return {"reward": reward}

    assert json.loads(await worker._answer(1, result(np.float32(0.5)))) == {"id": 1, "reward": 0.5}
    assert "object" in json.loads(await worker._answer(2, result(object())))["failed"]


async def test_a_killed_worker_is_a_fault_of_all_its_episodes() -> None:
    async with small() as factory:
        worker = factory.shared["setup"].worker
        task = factory.tasks("train", count=1)[0]
        unending = behaving(task, "hang")  # on a busy machine a rollout could end, and be scored, before the kill
        asked: list[int] = []

        async def strategy(conversation: Any, tools: Any) -> Any:
            asked.append(1)
            if len(asked) == 4:
                os.kill(worker.pid, signal.SIGKILL)
            while len(asked) < 4:
                await asyncio.sleep(0.01)
            return final_answer("x")

        running = (
            run_episode(factory, StrategyAgent(strategy), unending, seed=0, episode_id="e", limits=EpisodeLimits())
            for _ in range(4)
        )
        episodes = await asyncio.gather(*running)
        assert [(e.outcome, e.reward) for e in episodes] == [(Outcome.INFRA_FAULT, None)] * 4, episodes[0].error
        assert (await play(factory, task, str(task.target))).reward == 1.0


async def test_a_full_context_is_a_truncation() -> None:
    class Full(StrategyAgent):
        async def act(self, conversation: Any, tools: Any) -> Any:
            if conversation.turns:
                raise ContextFull("9 of 8 tokens")
            return await super().act(conversation, tools)

    async with small() as factory:
        task, agent = factory.tasks("train", count=1)[0], Full(actions_in_order(final_answer("x")))
        episode = await run_episode(factory, agent, task, seed=0, episode_id="e", limits=EpisodeLimits())
    assert (episode.outcome, episode.ended_by) == (Outcome.TRUNCATED, "max_tokens"), episode.error


async def test_the_contract_holds() -> None:
    only = ("contract", "malformed actions", "leaks")
    report = await run_checks(small(), tasks=1, seconds=90, only=only)
    assert [row for row in report.rows if row.ok is False] == []


OWNER = """
import asyncio, json, sys
from contrib.verifiers import interpreter, worker
from contrib.verifiers.tests import small_worker
from forge_env.rollout.factory import make
interpreter.worker.__file__ = small_worker.__file__
async def main():
    async with make("verifiers:small", python=sys.executable) as factory:
        process = factory.shared["setup"].worker._process
        print(json.dumps([process.pid, str(process.folder)]), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def test_nothing_is_left_of_a_killed_owner() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    guard, folder = json.loads(owner.stdout.readline())
    children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    assert children and Path(folder).is_dir()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 30
    left = [Path(folder), *(Path(f"/proc/{pid}") for pid in (guard, *children))]
    while any(path.exists() for path in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [path for path in left if path.exists()] == []


def test_tasks_are_held_out_by_content_or_by_a_config_of_their_own() -> None:
    factory = small()
    train, test = (factory.tasks(split, count=8) for split in ("train", "test"))
    assert not {t.id for t in train} & {t.id for t in test}
    assert factory.tasks("train", count=8) == train
    assert len(small(test_config='{"taskset": {"split": "test"}}').tasks("test", count=60)) == 60
    assert _merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {"a": {"b": 3, "c": 2}, "d": 4}


async def test_mistakes_are_one_sentence() -> None:
    for options, message in (
        ({"python": "/nix/python"}, "the option python is '/nix/python', and there is no such interpreter: uv venv"),
        ({"python": sys.executable, "config": "[]"}, "the option config is '[]'; write it as a JSON object"),
        ({}, "verifiers is not installed beside forge-env"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            make("verifiers:small", **options).tasks(count=1)
        with pytest.raises(UserError, match=re.escape(message)):
            async with make("verifiers:small", **options):
                pass
    with pytest.raises(UserError, match="verifiers cannot load 'nope'"):
        small("nope").tasks(count=1)
    with pytest.raises(UserError, match="verifiers cannot load 'nope'"):
        async with small("nope"):
            pass
    with pytest.raises(ServiceError, match="verifiers:broken did not start: the disk is full"):
        async with small("broken"):
            pass
    with pytest.raises(UserError, match="61 train tasks were asked for"):
        small().tasks("train", count=61)
    with pytest.raises(UserError, match="there is no split 'all'. Available: test, train"):
        small().tasks("all", count=1)
    with pytest.raises(UserError, match="needs the id of an environment"):
        make("verifiers:")


def test_an_interpreter_without_verifiers_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    message = re.escape(f"{sys.executable} has no verifiers with its API v1") + ".*uv pip install --python"
    with pytest.raises(UserError, match=message):
        small().tasks(count=1)


def test_the_worker_gets_the_proxies_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "small.example")
    assert interpreter.environment()["NO_PROXY"] == no_proxy()["NO_PROXY"]
    assert "small.example" in no_proxy()["NO_PROXY"]
