"""Group-relative advantages against hand numbers and their properties."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.errors import UserError
from trainers.objective.advantages import (
    Baseline,
    Normalization,
    batch_std,
    centred,
    group_relative,
    has_signal,
    leave_one_out,
    make_advantages,
    relative_to_mean,
    spread,
)

rewards = st.lists(st.floats(-10, 10) | st.sampled_from([0.0, 1.0]), max_size=16)


def test_by_hand() -> None:
    """Mean 0.25, squared deviations 3 / 16 + 9 / 16, divided by n - 1 = 3: a standard deviation of 0.5."""
    assert group_relative([1.0, 0.0, 0.0, 0.0], std_eps=0.0) == [1.5, -0.5, -0.5, -0.5]
    assert group_relative([1.0, 0.0, 0.0, 0.0], std_eps=0.5) == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize("same", [[], [0.7], [0.1] * 3, [1.0] * 8, [-0.3] * 7, [1e-300] * 5])
def test_one_reward_teaches_nothing(same: list[float]) -> None:
    assert group_relative(same) == [0.0] * len(same)
    assert group_relative(same, std_eps=0.0) == centred(same) == leave_one_out(same) == [0.0] * len(same)
    assert batch_std(same) == 1.0


@given(rewards)
def test_mean_is_zero_and_order_is_kept(values: list[float]) -> None:
    advantages = group_relative(values)
    assert len(advantages) == len(values)
    assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-6)
    by_reward = sorted(zip(values, advantages, strict=True))
    assert all(a <= b for (_, a), (_, b) in pairwise(by_reward))


@given(rewards, st.integers(0, 99))
def test_siblings_have_no_order(values: list[float], seed: int) -> None:
    places = random.Random(seed).sample(range(len(values)), len(values))
    advantages = group_relative(values)
    assert group_relative([values[i] for i in places]) == [advantages[i] for i in places]


@given(st.lists(st.integers(-9, 9).map(float), min_size=2, max_size=16).filter(lambda v: len(set(v)) > 1))
def test_standard_deviation_is_one(values: list[float]) -> None:
    assert statistics.stdev(group_relative(values, std_eps=0.0)) == pytest.approx(1.0)


# ---- other baselines and normalisations ----


def test_the_other_advantages_by_hand() -> None:
    """Mean 0.25; the others' mean is 0 for the first, 1 / 3 for the rest; population variance 3 / 16."""
    rewards = [1.0, 0.0, 0.0, 0.0]
    assert centred(rewards) == [0.75, -0.25, -0.25, -0.25]
    assert leave_one_out(rewards) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert group_relative(rewards, std_eps=0.0, ddof=0) == pytest.approx([math.sqrt(3)] + [-1 / math.sqrt(3)] * 3)
    assert batch_std(rewards, std_eps=0.5) == 1.0
    assert batch_std(rewards, std_eps=0.0, ddof=0) == pytest.approx(math.sqrt(3) / 4)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=16))
def test_leave_one_out_is_the_reward_less_the_mean_of_the_others(values: list[float]) -> None:
    others = [statistics.fmean(values[:i] + values[i + 1 :]) for i in range(len(values))]
    expected = [value - other for value, other in zip(values, others, strict=True)]
    assert leave_one_out(values) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "none"])
@pytest.mark.parametrize("normalization", ["none", "group", "batch", "mean"])
def test_baselines_and_normalisations_are_independent(baseline, normalization) -> None:
    groups = [[1.0, 0.0, 0.0], [3.0, 1.0, 1.0]]
    function, scale = make_advantages(baseline, normalization, std_eps=0.1, ddof=1)
    plain, no_scale = make_advantages(baseline, "none", std_eps=0.1, ddof=1)
    assert no_scale is None and (scale is not None) == (normalization == "batch")
    divisor = scale([reward for group in groups for reward in group]) if scale else 1.0
    for group in groups:
        by_group = statistics.stdev(group) + 0.1 if normalization == "group" else 1.0
        by_batch = statistics.stdev(groups[0] + groups[1]) + 0.1 if normalization == "batch" else 1.0
        by_mean = statistics.fmean(group) if normalization == "mean" else 1.0
        expected = [advantage / by_group / by_batch / by_mean for advantage in plain(group)]
        assert [advantage / divisor for advantage in function(group)] == pytest.approx(expected)


@given(st.integers(1, 16), st.integers(0, 16))
def test_the_successes_of_a_task_that_is_solved_at_all_weigh_the_same_by_the_mean(
    successes: int, failures: int
) -> None:
    """Their score functions are averaged, as in MaxRL's estimator; the baseline takes the same off all members."""
    rewards = [1.0] * successes + [0.0] * failures
    advantages = relative_to_mean(rewards)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-9)
    weights = [advantage + 1.0 for advantage in advantages] if failures else [1.0] * successes
    assert sum(weights[:successes]) == pytest.approx(len(rewards))
    assert not any(weights[successes:])


def test_by_the_mean_a_group_without_a_reward_has_no_advantage_and_a_negative_reward_is_refused() -> None:
    assert relative_to_mean([0.0, 0.0]) == [0.0, 0.0] and relative_to_mean([]) == []
    with pytest.raises(UserError, match=r"normalization is 'mean'.*-0\.5.*'group'"):
        relative_to_mean([1.0, -0.5])


@pytest.mark.parametrize(("eps", "ddof"), [(-1.0, 1), (math.nan, 1), (1e-4, 2)])
def test_settings_out_of_range(eps: float, ddof: int) -> None:
    with pytest.raises(UserError, match="std_ddof"):
        make_advantages("mean", "group", std_eps=eps, ddof=ddof)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("normalization", ["none", "group", "mean"])
@pytest.mark.parametrize(
    "rounded", [[1.0 - 0.1 - 0.1 - 0.1, 0.7, 0.7], [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 0.6], [0.3 - 0.1 - 0.2, 0.0, 0.0]]
)
def test_a_spread_out_of_rounding_gives_no_advantage(
    baseline: Baseline, normalization: Normalization, rounded: list[float]
) -> None:
    assert len(set(rounded)) == 2 and not has_signal(rounded)
    advantages, _ = make_advantages(baseline, normalization, std_eps=0.0, ddof=1)
    assert advantages(rounded) == [0.0] * 3
    assert batch_std(rounded) == 1.0 and spread(rounded) == 0.0
    assert has_signal([0.7, 0.7 + 1e-6])
