"""Rewards of a group: siblings are compared in runs, evaluations and by hand; a comparison that fails is no zero."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forge_env
from agents.scripted import ScriptedAgent
from forge_env import EnvFactory, GroupSpec, Task, ToolEnv, UserError, group_reward, pairwise, reward, run_group
from forge_env.core.episode import Group, read_jsonl
from forge_env.core.errors import EnvError, PolicyError
from forge_env.core.faults import FaultPolicy
from forge_env.core.types import EpisodeLimits, Message, Outcome
from forge_env.evaluation.api import EvalResult
from forge_env.rollout.group_reward import without_group_rewards

TASK = Task(prompt=({"role": "user", "content": "go"},), target="aaa")


class Essay(ToolEnv):
    """An answer is right if it begins with the target; the longest of a group is the best."""

    def __init__(self, *, unit: float = 1.0, result: Any = None) -> None:
        super().__init__()
        self.unit, self.result = unit, result

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return [Task(prompt=({"role": "user", "content": f"go {i}"},), target="aaa") for i in range(count)]

    @reward
    def right(self, answer: str, target: str) -> float:
        if answer == "broken":
            raise RuntimeError("no verdict")
        return float(answer.startswith(target))

    @group_reward(weight=0.5)
    async def longest(self, answers: list[str], task: Task, target: str, prompt: str) -> Any:
        assert target == task.target and prompt == task.prompt[-1]["content"]
        if isinstance(self.result, Exception):
            raise self.result
        if self.result == "slow":
            await asyncio.Event().wait()
        return self.result or [self.unit * (len(answer) == max(map(len, answers))) for answer in answers]


def answering(*answers: str) -> ScriptedAgent:
    """An agent that gives the answers one after the other."""
    given = itertools.cycle(answers)

    async def say(messages: list[Message]) -> Message:
        return {"role": "assistant", "content": next(given)}

    return ScriptedAgent(say)


async def play(*answers: str, target: str = "", **options: Any) -> Group:
    factory = EnvFactory(Essay, **options)
    factory.add_group_reward(target)
    async with factory:
        spec = GroupSpec(task=TASK, count=len(answers), seed=0, group_id="g")
        group = await run_group(factory, answering(*answers), spec)
    in_order = sorted(group.episodes, key=lambda episode: answers.index(episode.messages[-1]["content"]))
    return replace(group, episodes=tuple(in_order))  # siblings answer in any order


async def test_each_sibling_gets_its_number_as_a_part_of_its_reward() -> None:
    group = await play("aaa", "aaaa", "b", unit=2.0)
    assert [e.reward for e in group.episodes] == [1.0, 2.0, 0.0]
    assert [dict(e.rewards) for e in group.episodes] == [
        {"right": 1.0, "longest": 0.0},
        {"right": 1.0, "longest": 2.0},
        {"right": 0.0, "longest": 0.0},
    ]
    assert [e.success for e in group.episodes] == [True, True, False], "an episode succeeds by itself"
    alone = [without_group_rewards(e, EnvFactory(Essay).group_rewards) for e in group.episodes]
    assert [(e.reward, dict(e.rewards)) for e in alone] == [(r, {"right": r}) for r in (1.0, 1.0, 0.0)]


async def test_valid_siblings_are_compared_if_there_are_several() -> None:
    (episode,) = (await play("aaa")).episodes
    assert dict(episode.rewards) == {"right": 1.0}
    group = await play("aaa", "broken", "b")
    assert [e.outcome.is_valid for e in group.episodes] == [True, False, True]
    assert group.rewards == (1.5, 0.0) and "no verdict" in group.episodes[1].error
    group = await play("aaa", "broken")
    assert group.valid == ()
    assert group.episodes[0].error == "longest: no sibling with a reward is left to compare the episode with"


FAILURES = {
    "too few": ([1.0], "longest returned [1.0] for 2 episodes; return a list with one number for each"),
    "no list": (3, "longest returned 3 for 2 episodes; return a list with one number for each"),
    "a text": ("12", "longest returned '12' for 2 episodes; return a list with one number for each"),
    "nan": ([float("nan"), 1.0], "longest returned nan; a reward is a finite number, of a size of 1e+09 at most"),
    "a word": ([1.0, "high"], "longest returned 'high'; a reward is a finite number, of a size of 1e+09 at most"),
    "raises": (KeyError("score"), "KeyError: 'score'"),
}


@pytest.mark.parametrize(("result", "sentence"), FAILURES.values(), ids=FAILURES)
async def test_a_comparison_that_fails_leaves_no_reward(result: Any, sentence: str) -> None:
    group = await play("aaa", "b", result=result)
    for episode in group.episodes:
        assert (episode.outcome, episode.reward, episode.success) == (Outcome.ENV_FAULT, None, None)
        assert episode.error.startswith("group reward longest (") or episode.error.startswith("the group reward")
        assert episode.error.endswith(sentence)


async def test_a_judge_without_an_answer_is_a_fault_of_the_machinery() -> None:
    group = await play("aaa", "b", result=PolicyError("the judge is away"))
    assert {(e.outcome, e.error) for e in group.episodes} == {
        (Outcome.INFRA_FAULT, "PolicyError: the judge is away"),
    }


async def test_a_comparison_has_the_time_of_scoring() -> None:
    async with EnvFactory(Essay, result="slow") as factory:
        spec = GroupSpec(task=TASK, count=2, seed=0, group_id="g")
        limits = EpisodeLimits(scoring_seconds=0.05)
        group = await run_group(
            factory, answering("aaa", "b"), spec, limits=limits, on_fault=FaultPolicy(mode="refill")
        )
    assert {e.error for e in group.episodes} == {"the comparison of a group took longer than 0.05 s"}
    assert group.replaced == (), "the episodes themselves were right"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "own.py").write_text(
        "def first(episodes):\n"
        "    episodes[0].info['edited'] = True\n"
        "    return [float(place == 0) for place in range(len(episodes))]\n"
        "def right(answers):\n"
        "    return [10.0] * len(answers)\n"
        "def wrong(answer):\n"
        "    return []\n"
    )
    yield f"{tmp_path}/own.py"


async def test_a_function_of_the_users_own_compares_beside_the_methods(own: str) -> None:
    group = await play("aaa", "aaaa", target=f"{own}:first")
    assert group.rewards == (2.0, 1.5)
    assert dict(group.episodes[0].rewards) == {"right": 1.0, "longest": 0.0, "first": 1.0}
    assert "edited" not in group.episodes[0].info, "it was given a copy"
    named = (await play("aaa", "b", target=f"{own}:right")).episodes[0]
    assert dict(named.rewards) == {"right": 1.0, "longest": 1.0, "right_2": 10.0}


def test_parameters_and_sizes_are_refused_before_anything_starts(own: str) -> None:
    factory = EnvFactory(Essay)
    with pytest.raises(UserError, match="the reward wrong has the parameter 'answer', which is no argument"):
        factory.add_group_reward(f"{own}:wrong")
    with pytest.raises(UserError, match="^--samples is 1, and longest of .*Essay compares the episodes of a task"):
        evaluate(1)
    with pytest.raises(UserError, match="Bad.step is a reward, and Env reserves this name"):
        type("Bad", (ToolEnv,), {"step": group_reward(lambda self, answers: answers)})


# ---- evaluations ----


def evaluate(samples: int, agent: ScriptedAgent | None = None, **settings: Any) -> EvalResult:
    settings = {"tasks": 2, "concurrency": 1, "progress": False, **settings}
    return forge_env.evaluate(Essay, agent or answering("aaa", "aaaa", "b"), samples=samples, **settings)


def test_the_attempts_at_a_task_are_a_group(own: str) -> None:
    result = evaluate(3, group_reward=f"{own}:first")
    by_id = {e.id.rpartition("/")[2]: dict(e.rewards) for e in result.episodes}
    assert by_id == {
        "0": {"right": 1.0, "longest": 0.0, "first": 1.0},
        "1": {"right": 1.0, "longest": 1.0, "first": 0.0},
        "2": {"right": 0.0, "longest": 0.0, "first": 0.0},
    }
    assert result.figures["rewards"]["longest"]["mean"] == pytest.approx(1 / 3)
    assert result.success == pytest.approx(2 / 3)


def test_an_attempt_that_is_made_again_is_compared_with_the_recorded_ones(tmp_path: Path) -> None:
    first = evaluate(3, answering("aaa", "broken", "b"), tasks=1, out=tmp_path / "run")
    assert [(e.id[-1], e.reward) for e in first.episodes] == [("0", 1.5), ("2", 0.0)]
    again = evaluate(3, answering("aaaa"), tasks=1, out=tmp_path / "run")
    assert (again.figures["episodes_run"], again.figures["episodes_read"]) == (1, 2)
    recorded = read_jsonl(tmp_path / "run" / "episodes.jsonl")
    assert [(e.id[-1], e.reward) for e in recorded] == [("0", 1.5), ("2", 0.0), ("1", 1.5)]


def test_the_function_is_part_of_what_an_evaluation_depends_on(tmp_path: Path, own: str) -> None:
    evaluate(2, out=tmp_path / "run", group_reward=f"{own}:first")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["group_reward"] == f"{own}:first" and any("own.py" in n for n in plan["depends_on"]["environment"])
    with pytest.raises(UserError, match="holds results of other settings"):
        evaluate(2, out=tmp_path / "run")


# ---- pairs ----


@given(st.lists(st.integers(0, 4), min_size=2, max_size=5))
def test_pairwise_is_the_mean_over_all_others_in_both_orders(values: list[int]) -> None:
    """A judge that prefers the first place gives the same as one that does not."""

    def biased(first: int, second: int) -> float:
        return min(1.0, 0.5 * (1 + (first > second) - (first < second)) + 0.25 * (first == second))

    def slow(place: int) -> float:
        others = [value for other, value in enumerate(values) if other != place]
        return sum(1.0 if values[place] > o else 0.5 if values[place] == o else 0.0 for o in others) / len(others)

    expected = [slow(place) for place in range(len(values))]
    assert asyncio.run(pairwise(values, biased)) == pytest.approx(expected)


async def test_pairwise_asks_all_pairs_at_once_and_refuses_other_numbers() -> None:
    asked, everyone = [], asyncio.Event()

    async def compare(first: str, second: str) -> float:
        asked.append(first + second)
        if len(asked) == 6:
            everyone.set()
        await asyncio.wait_for(everyone.wait(), 60)
        return 0.5

    assert await pairwise("abc", compare) == [0.5] * 3
    with pytest.raises(EnvError, match="a comparison of two returned 2; return the share of the first, from 0 to 1"):
        await pairwise("ab", lambda first, second: 2.0)
