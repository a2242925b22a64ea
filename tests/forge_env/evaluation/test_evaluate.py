"""Evaluation: the interval against its definition, order, concurrency, and faults that are no failures."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Episode, Group
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.types import Outcome, Task
from forge_env.evaluation.evaluate import Evaluation, evaluate, is_success
from forge_env.evaluation.folder import EvalFolder, extended_from
from forge_env.utils.statistics import wilson

TASKS = [Task(prompt=(), target=i) for i in range(12)]


def episode(index: int, reward: float | None, outcome: Outcome = Outcome.SCORED) -> Episode:
    return Episode(task=TASKS[index], turns=(), outcome=outcome, reward=reward, id=f"e/{index}")


def group(index: int, *episodes: Episode) -> Group:
    return Group(task=TASKS[index], episodes=episodes, id=f"g/{index}")


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.4901625, 0.9433178), (0, 10, 0.0, 0.2775328), (10, 10, 0.7224672, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson_against_published_numbers(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-6)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_its_equation(counts: tuple[int, int]) -> None:
    """Each bound p lies z standard deviations of p away from the observed share."""
    successes, trials = counts
    share = successes / trials
    low, high = wilson(successes, trials)
    assert 0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1
    for bound in (low, high):
        assert abs(share - bound) == pytest.approx(1.959964 * math.sqrt(bound * (1 - bound) / trials), abs=1e-7)


def test_faults_are_counted_apart_and_never_as_failures() -> None:
    result = Evaluation(
        episodes=(
            episode(0, 1.0),
            episode(1, 0.0),
            episode(2, 0.99),
            episode(3, None, Outcome.INFRA_FAULT),
            episode(4, None, Outcome.ENV_FAULT),
            episode(5, 1.0, Outcome.TRUNCATED),
        )
    )
    assert (result.successes, len(result.valid), result.faults) == (2, 4, 2)
    assert result.success_rate == 0.5
    assert result.interval == wilson(2, 4)
    assert str(result) == "0.500 [0.150, 0.850], mean reward 0.748 over 4 episodes, 2 faults"


def test_a_timeout_is_an_attempt_that_failed_and_the_score_without_it_stands_beside() -> None:
    slow = [episode(1, None, Outcome.TIMEOUT), episode(2, None, Outcome.TIMEOUT)]
    result = Evaluation(episodes=(episode(0, 1.0), episode(1, 1.0), *slow, episode(3, None, Outcome.ENV_FAULT)))
    assert (result.successes, len(result.attempts), result.timeouts, result.faults) == (2, 4, 2, 1)
    assert result.success_rate == (1.0 + 0.5 + 0.0) / 3 and result.without_timeouts.value == 1.0
    assert result.pass_at(2).value == 1.0 and result.pass_hat(2).value == 0.0, "of the one task with two attempts"
    assert result.reward.value == 1.0, "a time-out has no reward"
    metrics = result.metrics()
    assert (metrics["success"], metrics["success_without_timeouts"], metrics["timeouts"]) == (0.5, 1.0, 2.0)
    assert (metrics["episodes"], metrics["faults"]) == (4.0, 1.0)
    assert str(result).endswith("over 4 episodes, 2 time-outs (without them 1.000), 1 faults")


def test_time_outs_alone_are_no_success_and_no_reward_and_faults_alone_no_rate() -> None:
    result = Evaluation(episodes=(episode(0, None, Outcome.TIMEOUT),))
    assert result.success_rate == 0.0 and math.isnan(result.without_timeouts.value)
    assert {"reward", "success_without_timeouts"}.isdisjoint(result.metrics())
    result = Evaluation(episodes=(episode(0, None, Outcome.ENV_FAULT),))
    assert math.isnan(result.success_rate) and result.interval == (0.0, 1.0)


def test_rounding_is_no_reward_out_of_range_and_no_change() -> None:
    one, other = (Evaluation(episodes=tuple(episode(i, reward) for i in range(6))) for reward in (0.7 + 0.1 + 0.2, 1.0))
    assert one.reward.high <= 1.0 and one.reward.low == other.reward.low, "an interval of shares"
    above = Evaluation(episodes=(episode(0, 1.0 + 4e-16), episode(1, 0.0)))
    assert 0.0 <= above.reward.low < above.reward.high <= 1.0
    text = one.change_text(other)
    assert "the mean reward by +0.000" in text and text.count("0 better, 0 worse, 6 alike") == 2


def test_a_change_speaks_of_the_mean_reward_beside_success() -> None:
    before = Evaluation(episodes=tuple(episode(i, 0.25) for i in range(8)))
    after = Evaluation(episodes=tuple(episode(i, 0.75) for i in range(8)))
    text = after.change_text(before)
    assert text.startswith("on the same 8 tasks, training changed success by +0.000 [")
    assert "0 better, 0 worse, 8 alike (p = 1.000), and the mean reward by +0.500 [" in text
    assert text.endswith(": 8 better, 0 worse, 0 alike (p = 0.008)")
    assert after.change_text(Evaluation(episodes=(episode(9, 1.0),))) == ""
    slow = Evaluation(episodes=(episode(0, None, Outcome.TIMEOUT),))
    assert "the mean reward" not in slow.change_text(before), "a time-out has no reward to compare"


def test_the_parts_of_the_reward_are_shown_with_the_episodes_that_have_them() -> None:
    parts = [{"form": 1.0, "right": 0.0}, {"form": 0.5}, {}]
    result = Evaluation(episodes=tuple(replace(episode(i, 0.5), rewards=of) for i, of in enumerate(parts)))
    assert result.parts_text == "form 0.750 (2 of 3 episodes), right 0.000 (1 of 3 episodes)"
    figures = {name: value for name, value in result.metrics().items() if name.startswith("reward/form/")}
    assert figures == {"reward/form/mean": 0.75, "reward/form/std": 0.25, "reward/form/episodes": 2.0}
    alone = Evaluation(episodes=(replace(episode(0, 0.5), rewards={"right": 0.5}),))
    assert alone.parts_text == "" and alone.metrics()["reward/right/mean"] == 0.5, "it is the reward itself"


def test_success_is_the_full_reward_or_what_the_environment_says() -> None:
    rewards = [(1.0, True), (1.5, True), (0.999, False), (-1.0, False)]
    assert [is_success(episode(0, reward)) for reward, _ in rewards] == [expected for _, expected in rewards]
    episodes = [replace(episode(0, reward), success=success) for reward, success in ((0.8, True), (1.0, False))]
    assert [is_success(one) for one in episodes] == [True, False]
    assert [is_success(Episode.from_json(one.to_json())) for one in episodes] == [True, False]


@pytest.mark.parametrize("concurrency", [4, 99])
async def test_order_is_the_tasks_and_concurrency_is_bounded(concurrency: int) -> None:
    running = most = 0
    done: list[int] = []

    async def run_group(task: Task, index: int) -> Group:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20 - index):  # the later ones end first
            await asyncio.sleep(0)
        running -= 1
        assert TASKS[index] is task
        return group(index, episode(index, 1.0))

    result = await evaluate(run_group, TASKS, concurrency=concurrency, on_done=done.append)
    assert [e.task for e in result.episodes] == TASKS
    assert most == min(concurrency, len(TASKS))
    assert done == list(range(1, len(TASKS) + 1))


async def test_a_service_that_dies_surfaces_as_itself() -> None:
    async def run_group(task: Task, index: int) -> Group:
        raise ServiceError("the environment actor died")

    with pytest.raises(ServiceError, match="actor died"):
        await evaluate(run_group, TASKS, concurrency=4)


@pytest.mark.parametrize("name", ["plan.json", "episodes.jsonl", "faults.jsonl", "eval.json"])
def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "plan.json").write_text("{}") if name != "plan.json" else None
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"{name} is a folder"), EvalFolder(tmp_path, {}):
        pass
    with pytest.raises(UserError, match=f"{name} is a folder"):
        extended_from(tmp_path, 2)
