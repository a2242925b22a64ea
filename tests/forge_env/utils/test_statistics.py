"""Statistics: every estimator against its definition, enumerated, and every interval against numbers of others."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.utils.statistics import (
    Paired,
    Pairs,
    clustered_mean,
    clustered_share,
    compare_all,
    holm,
    pass_at_k,
    pass_hat_k,
    share_difference,
    student,
    wilson,
)

COUNTS = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
SHARES = st.lists(st.integers(0, 4).map(lambda c: c / 4), min_size=1, max_size=40)
NUMBERS = st.lists(st.integers(-50, 50).map(lambda c: c / 10), min_size=2, max_size=9)


@given(COUNTS)
def test_both_are_the_share_of_all_subsets(counts: tuple[int, int, int]) -> None:
    n, c, k = counts
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_both_are_unbiased(share: float, k: int) -> None:
    """Their expectation over all outcomes of 5 attempts is the probability that they estimate."""
    n = 5
    weights = [math.comb(n, c) * share**c * (1 - share) ** (n - c) for c in range(n + 1)]
    at = sum(w * pass_at_k(n, c, k) for c, w in enumerate(weights))
    hat = sum(w * pass_hat_k(n, c, k) for c, w in enumerate(weights))
    assert at == pytest.approx(1 - (1 - share) ** k)
    assert hat == pytest.approx(share**k)


@given(COUNTS)
def test_more_attempts_help_one_and_harm_the_other(counts: tuple[int, int, int]) -> None:
    n, c, k = counts
    assert pass_at_k(n, c, 1) == pass_hat_k(n, c, 1) == pytest.approx(c / n)
    assert pass_hat_k(n, c, k) <= c / n + 1e-12 and c / n - 1e-12 <= pass_at_k(n, c, k)


def test_large_counts_are_exact() -> None:
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)
    assert pass_hat_k(10_000, 9_999, 100) == pytest.approx(0.99)


@pytest.mark.parametrize("counts", [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_impossible_counts_raise(counts: tuple[int, int, int]) -> None:
    for estimate in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="1 <= k <= n"):
            estimate(*counts)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_one_attempt_per_task_is_wilsons_interval(counts: tuple[int, int]) -> None:
    successes, tasks = counts
    share = clustered_share([1.0] * successes + [0.0] * (tasks - successes), attempts=tasks)
    assert (share.value, share.tasks) == (pytest.approx(successes / tasks), tasks)
    assert share.interval == pytest.approx(wilson(successes, tasks), abs=1e-9)


@given(SHARES)
def test_attempts_that_always_agree_narrow_nothing(values: list[float]) -> None:
    """Eight attempts that all do as the first did are worth one."""
    tasks = [float(value > 0.5) for value in values]
    eight, one = (clustered_share(tasks, attempts=n * len(tasks)) for n in (8, 1))
    assert eight.interval == pytest.approx(one.interval, abs=1e-12)


@given(SHARES)
def test_an_interval_lies_between_one_trial_per_task_and_one_per_attempt(values: list[float]) -> None:
    tasks, mean = len(values), statistics.fmean(values)
    share = clustered_share(values, attempts=4 * tasks)
    assert 0 <= share.low <= share.value <= share.high <= 1
    widest, narrowest = wilson(mean * tasks, tasks), wilson(mean * 4 * tasks, 4 * tasks)
    assert widest[0] - 1e-9 <= share.low <= narrowest[0] + 1e-9
    assert narrowest[1] - 1e-9 <= share.high <= widest[1] + 1e-9


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=12))
def test_the_variance_is_millers_double_sum(attempts: list[list[bool]]) -> None:
    """sum over tasks, i and j of (s_i - m) (s_j - m), over N^2: m (1 - m) over the trials, corrected for few tasks."""
    scores = [float(x) for task in attempts for x in task]
    m, total = statistics.fmean(scores), len(scores)
    double = sum((a - m) * (b - m) for task in attempts for a, b in product(task, task)) / total**2
    count = len(attempts)
    few = (count - 1) / count * (statistics.NormalDist().inv_cdf(0.975) / student(count - 1)) ** 2
    trials = min(max(count, m * (1 - m) / double * few), total) if double > 1e-12 else count
    share = clustered_share([sum(task) / 3 for task in attempts], attempts=total)
    assert share.interval == pytest.approx(wilson(m * trials, trials), abs=1e-9)


@pytest.mark.parametrize("tasks", [6, 40])
@pytest.mark.parametrize("difficulties", [(0.05, 0.95), (0.3, 0.5, 0.7), (0.0, 0.0, 0.0, 0.9), (0.6, 1.0)])
def test_an_interval_holds_the_truth_as_often_as_it_says(tasks: int, difficulties: tuple[float, ...]) -> None:
    """Tasks of different difficulty, 8 attempts each: with few tasks too, and where nearly all fail or succeed."""
    rng, held, rounds, truth = random.Random(1), 0, 1500, statistics.fmean(difficulties)
    for _ in range(rounds):
        chances = rng.choices(difficulties, k=tasks)
        values = [sum(rng.random() < p for _ in range(8)) / 8 for p in chances]
        share = clustered_share(values, attempts=8 * tasks)
        held += share.low <= truth <= share.high
    assert held / rounds > 0.92


@given(NUMBERS)
def test_the_mean_has_the_standard_error_of_the_mean(values: list[float]) -> None:
    estimate = clustered_mean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert estimate.value == pytest.approx(statistics.fmean(values))
    assert (estimate.high - estimate.low) / 2 == pytest.approx(student(len(values) - 1) * error, abs=1e-12)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (30, 2.0423), (100, 1.984)],
)
def test_students_quantile_against_published_numbers(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, abs=freedom**-5 + 5e-5), "four terms, and four decimals"


def test_little_says_little() -> None:
    nothing = clustered_share([], attempts=0)
    assert math.isnan(nothing.value) and nothing.interval == (0.0, 1.0)
    nothing = clustered_mean([])
    assert math.isnan(nothing.value) and nothing.interval == (-math.inf, math.inf) and nothing.tasks == 0
    nothing = share_difference([], [], (0, 0))
    assert math.isnan(nothing.value) and nothing.interval == (-1.0, 1.0) and nothing.tasks == 0
    assert clustered_mean([2.0]).interval == (-math.inf, math.inf)


def paired(first: Sequence[float], second: Sequence[float], attempts: tuple[int, int] | None = None) -> Paired:
    return compare_all([Pairs(first=first, second=second, attempts=attempts)])[0]


@given(NUMBERS, st.randoms(use_true_random=False))
def test_pairs_against_all_flips(values: list[float], rng: random.Random) -> None:
    other = [rng.choice(values) for _ in values]
    result = paired(values, other)
    gaps = [a - b for a, b in zip(values, other, strict=True)]
    flips = [
        abs(math.fsum(s * d for s, d in zip(signs, gaps, strict=True))) for signs in product((1, -1), repeat=len(gaps))
    ]
    assert result.p_value == pytest.approx(sum(f >= abs(math.fsum(gaps)) - 1e-9 for f in flips) / len(flips))
    assert (result.wins, result.losses, result.ties) == tuple(
        sum(map(f, gaps)) for f in (lambda d: d > 0, lambda d: d < 0, lambda d: d == 0)
    )
    plain = clustered_mean(gaps)
    low, high = (plain.low, plain.high) if result.p_value < 0.05 else (min(plain.low, 0.0), max(plain.high, 0.0))
    assert result.difference == replace(plain, low=low, high=high)


def test_many_pairs_are_sampled_the_same_way_each_time() -> None:
    better, worse = [1.0] * 20 + [0.0] * 5, [0.0] * 20 + [1.0] * 5
    exact = sum(math.comb(25, i) for i in range(25 + 1) if abs(25 - 2 * i) >= 15) / 2**25
    result = paired(better, worse)
    assert result.p_value == paired(better, worse).p_value == pytest.approx(exact, abs=0.002)
    assert paired(worse, worse).p_value == 1.0


def test_the_difference_of_shares_is_newcombes() -> None:
    """20 and 16 of 50 tasks have equal results, 12 are won and 2 lost; the interval was computed by hand."""
    first, second = [1.0] * 32 + [0.0] * 18, [1.0] * 20 + [0.0] * 12 + [1.0] * 2 + [0.0] * 16
    result = paired(first, second, attempts=(50, 50)).difference
    assert (result.value, result.low, result.high) == pytest.approx((0.2, 0.0562, 0.3292), abs=5e-5)


@given(SHARES, st.randoms(use_true_random=False), st.integers(1, 4))
def test_the_difference_of_shares_has_an_interval_around_it_between_minus_one_and_one(
    first: list[float], random: random.Random, attempts: int
) -> None:
    second = [random.choice(first) for _ in first]
    result = share_difference(first, second, (attempts * len(first),) * 2)
    assert -1 <= result.low <= result.value <= result.high <= 1
    assert share_difference(first, first, (len(first),) * 2).high > 0, "equal runs may differ on other tasks"


def test_several_tests_are_corrected_for_their_number() -> None:
    assert [p for p, _ in holm([0.01, 0.04, 0.03, 0.005])] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [p for p, _ in holm([0.9, 0.8])] == [1.0, 1.0] and holm([0.04]) == [(0.04, 0.05)] and holm([]) == []


def test_each_interval_of_a_family_is_at_the_level_of_its_test() -> None:
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert [level for _, level in holm(p_values)] == pytest.approx([0.05 / 3, 0.025, 0.025, 0.0125])
    tests = zip(holm(p_values), p_values, strict=True)
    assert all((corrected < 0.05) == (p < level) for (corrected, level), p in tests)
    won = Pairs(first=[1.0] * 12 + [0.0] * 8, second=[0.0] * 20, attempts=(20, 20))
    even = Pairs(first=[1.0, 0.0], second=[0.0, 1.0], attempts=(2, 2))
    first, *others = compare_all([won, even, even, even])
    assert first.difference == won.difference(0.05 / 4) and first.difference.low < won.difference(0.05).low
    assert all(other.difference == even.difference(0.05 / 3) for other in others)
    assert won.difference(0.0125).high - won.difference(0.0125).low > 1.2 * (
        won.difference(0.05).high - won.difference(0.05).low
    )


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_the_size_of_rewards_changes_no_verdict(size: float) -> None:
    values = [0.1, 0.2, 0.3, -0.6, 0.7, 0.1, 0.2, -0.4, 0.3]
    assert paired([size * value for value in values], [0.0] * 9).p_value == paired(values, [0.0] * 9).p_value


def test_runs_of_different_tasks_are_no_pairs() -> None:
    with pytest.raises(ValueError):
        paired([1.0], [1.0, 0.0])
