"""Statistics of evaluations: pure functions of numbers, with one value for each task.

Attempts at one task are not independent. The unit of every interval is therefore the task ("clustered by task", Miller
2024, "Adding Error Bars to Evals", arXiv:2411.00640): all attempts at one task enter as one number.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from forge_env.core.reward_value import are_same, is_within

LEVEL = 0.05
"""The chance that an interval misses the truth, and that a test calls equal runs different."""
MAX_EXACT_TASKS = 12
"""Up to this number of differing tasks, the sign-flip test enumerates all flips."""
RANDOM_FLIPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 95% interval; the value is NaN if nothing was measured. Example: ``Estimate(value=0.5, low=0.4,
    high=0.6, tasks=90)``"""

    value: float
    low: float
    high: float
    tasks: int

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Comparison of two runs on the same tasks: the first minus the second."""

    difference: Estimate
    wins: int
    """Number of tasks on which the first run scored more."""
    losses: int
    ties: int
    p_value: float
    """Of the two-sided sign-flip test: the probability of such a difference between equal runs."""

    @property
    def is_different(self) -> bool:
        """Whether the difference is more than chance: its interval is without 0."""
        return not self.difference.low <= 0 <= self.difference.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """What two runs measured on the same tasks, in the same order."""

    first: Sequence[float]
    """One value for each task."""
    second: Sequence[float]
    attempts: tuple[int, int] | None = None
    """Total numbers of attempts of both runs, if the values are shares from 0 to 1."""

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float], attempts: tuple[int, int]) -> Pairs:
        """Return pairs that may be shares, or any other numbers."""
        are_shares = all(is_within(value, 0.0, 1.0) for value in (*first, *second))
        return cls(first=first, second=second, attempts=attempts if are_shares else None)

    @property
    def differences(self) -> list[float]:
        """One for each task, the first less the second; rounding is not a difference."""
        return [0.0 if are_same(both) else both[0] - both[1] for both in zip(self.first, self.second, strict=True)]

    def difference(self, level: float) -> Estimate:
        """The mean difference with its interval of 1 - `level`.

        It is `clustered_mean` of the differences: the difficulty that a task has for both runs cancels out. For shares
        it is `share_difference`.
        """
        if self.attempts is None:
            return clustered_mean(self.differences, level=level)
        return share_difference(self.first, self.second, self.attempts, level=level)


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of k attempts succeeds.

    1 - C(n-c, k) / C(n, k) for c successes in n attempts (Chen et al. 2021, "Evaluating Large Language Models Trained
    on Code", arXiv:2107.03374, equation 1): the share of the subsets of k attempts that hold a success.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    _check(attempts, successes, k)
    subsets = math.comb(attempts, k)
    return (subsets - math.comb(attempts - successes, k)) / subsets


def pass_hat_k(attempts: int, successes: int, k: int) -> float:
    """Unbiased estimate of the probability that all of k attempts succeed, written pass^k.

    C(c, k) / C(n, k) for c successes in n attempts (Yao et al. 2024, "tau-bench", arXiv:2406.12045, section 3).

    >>> pass_hat_k(4, 3, 2)
    0.5
    """
    _check(attempts, successes, k)
    return math.comb(successes, k) / math.comb(attempts, k)


def wilson(successes: float, trials: float, *, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927), at 95% by default.

    >>> tuple(round(x, 3) for x in wilson(8, 10))
    (0.49, 0.943)
    """
    if trials == 0:
        return 0.0, 1.0
    p, z = successes / trials, normal(level)
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials**2)) / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def clustered_share(values: Sequence[float], *, attempts: int, level: float = LEVEL) -> Estimate:
    """Return the mean of a share that was measured on each task, with an interval within 0 and 1.

    The variance of the mean m of T tasks is v = sum((x - m)^2) / (T (T - 1)), Miller's clustered one for tasks of equal
    weight, with the correction for few tasks. The interval is Wilson's, for as many independent trials as have this
    variance, m (1 - m) / v: an effective sample size in the place of the count (Dean and Pagano 2015, "Evaluating
    Confidence Interval Methods for Binomial Proportions in Clustered Surveys"), times (1.96 / t)^2 for Student's
    quantile t of T - 1 degrees of freedom, since v is estimated from T tasks alone (Korn and Graubard 1998). It is
    never taken below T nor above the number of attempts; with one attempt per task it is T, and the interval is
    Wilson's own. If all tasks agree, the observed variance is 0, and it is T.
    """
    tasks = len(values)
    if not tasks:
        return Estimate(value=math.nan, low=0.0, high=1.0, tasks=0)
    mean = math.fsum(values) / tasks
    squares = math.fsum((x - mean) ** 2 for x in values)
    trials = float(tasks)
    if squares > 1e-18 * tasks:
        effective = mean * (1 - mean) * tasks * (tasks - 1) / squares * (normal(level) / student(tasks - 1, level)) ** 2
        trials = min(max(tasks, effective), max(attempts, tasks))
    low, high = wilson(mean * trials, trials, level=level)
    return Estimate(value=mean, low=min(low, mean), high=max(high, mean), tasks=tasks)


def clustered_mean(values: Sequence[float], *, level: float = LEVEL) -> Estimate:
    """Return the mean of a quantity measured on each task, m plus and minus t sqrt(sum((x - m)^2) / (T (T - 1))).

    Miller's clustered standard error for tasks of equal weight, with the corrections for few tasks: T - 1, and
    Student's quantile t. With a single task the interval is unbounded.
    """
    tasks = len(values)
    if not tasks:
        return Estimate(value=math.nan, low=-math.inf, high=math.inf, tasks=0)
    mean = math.fsum(values) / tasks
    if tasks == 1:
        return Estimate(value=mean, low=-math.inf, high=math.inf, tasks=1)
    error = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (tasks * (tasks - 1)))
    half = student(tasks - 1, level) * error
    return Estimate(value=mean, low=mean - half, high=mean + half, tasks=tasks)


def normal(level: float) -> float:
    """Return the normal quantile of an interval that misses the truth by this chance."""
    return NormalDist().inv_cdf(1 - level / 2)


def student(freedom: int, level: float = LEVEL) -> float:
    """Return Student's t for an interval that misses the truth by this chance; exact for 1 and 2 degrees of freedom,
    else by an expansion in 1 / freedom.

    Abramowitz and Stegun, 26.7.5; the error is below 0.004 at 95%.

    >>> round(student(10), 3)
    2.228
    """
    if freedom == 1:
        return math.tan(math.pi * (1 - level) / 2)
    if freedom == 2:
        return (1 - level) / math.sqrt(2 * (1 - level / 2) * level / 2)
    z = normal(level)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def compare_all(family: Sequence[Pairs]) -> list[Paired]:
    """Compare two runs in several respects, such as kinds of task, with verdicts that hold for all of them together.

    The p-values come from the sign-flip test (Fisher 1935), exact for few differing tasks, else from fixed random
    flips, corrected for their number (`holm`). Each interval is at the level at which Holm's method tests its p-value.
    An interval contains 0 if the test does not call the runs different: the two never contradict each other.
    """
    p_values = [_sign_flips([d for d in pairs.differences if d != 0]) for pairs in family]
    return [_compare(pairs, *test) for pairs, test in zip(family, holm(p_values), strict=True)]


def _compare(pairs: Pairs, p_value: float, level: float) -> Paired:
    difference, differences = pairs.difference(level), pairs.differences
    if p_value >= LEVEL:
        difference = replace(difference, low=min(difference.low, 0.0), high=max(difference.high, 0.0))
    return Paired(
        difference=difference,
        wins=sum(d > 0 for d in differences),
        losses=sum(d < 0 for d in differences),
        ties=sum(d == 0 for d in differences),
        p_value=p_value,
    )


def share_difference(
    first: Sequence[float], second: Sequence[float], attempts: tuple[int, int], *, level: float = LEVEL
) -> Estimate:
    """Return the mean difference of shares that two runs have on the same tasks, with an interval within -1 and 1.

    Newcombe's interval for paired proportions (1998, "Improved confidence intervals for the difference between binomial
    proportions based on paired data", method 10): the distances from both shares to the ends of their own intervals,
    here the intervals of `clustered_share`, are combined as correlated errors. The covariance of the tasks is taken
    half a task nearer to 0 if it is positive, so that equal runs have an interval, too.

    >>> difference = share_difference([1.0] * 5 + [0.0] * 5, [0.0] * 10, (10, 10))
    >>> round(difference.low, 3), round(difference.high, 3)
    (0.117, 0.763)
    """
    tasks = len(first)
    a = clustered_share(first, attempts=attempts[0], level=level)
    b = clustered_share(second, attempts=attempts[1], level=level)
    if not tasks:
        return Estimate(value=math.nan, low=-1.0, high=1.0, tasks=0)
    covariance = math.fsum((x - a.value) * (y - b.value) for x, y in zip(first, second, strict=True)) / tasks
    if covariance > 0:
        covariance = max(0.0, covariance - 1 / (2 * tasks))
    variances = (math.fsum((x - e.value) ** 2 for x in values) / tasks for e, values in ((a, first), (b, second)))
    spread = math.sqrt(math.prod(variances))
    correlation = covariance / spread if spread > 1e-12 else 0.0

    def distance(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))

    value = 0.0 if are_same((a.value, b.value)) else a.value - b.value
    low = value - distance(a.value - a.low, b.high - b.value)
    high = value + distance(a.high - a.value, b.value - b.low)
    return Estimate(value=value, low=max(-1.0, low), high=min(1.0, high), tasks=tasks)


def holm(p_values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the p-values of a family of tests, corrected for their number (Holm 1979), and the level of each test.

    The chance that any of the tests falls below a level by accident is then at most this level. After the first test
    that fails it goes no further.

    >>> [(p, round(level, 4)) for p, level in holm([0.01, 0.04, 0.03])]
    [(0.03, 0.0167), (0.06, 0.025), (0.06, 0.025)]
    """
    results, highest, at, is_open = [(1.0, LEVEL)] * len(p_values), 0.0, LEVEL, True
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        at = LEVEL / (len(p_values) - rank) if is_open else at
        is_open &= p_values[index] < at
        results[index] = highest, at
    return results


def _sign_flips(differences: Sequence[float]) -> float:
    """Return the share of all ways to swap the two runs, task by task, with at least the observed difference."""
    count = len(differences)
    if not count:
        return 1.0
    sizes = [abs(difference) for difference in differences]
    observed_sum = abs(math.fsum(differences)) - 1e-9 * math.fsum(sizes)
    if count <= MAX_EXACT_TASKS:
        sums = (math.fsum(-d if bits >> i & 1 else d for i, d in enumerate(sizes)) for bits in range(2**count))
        return sum(abs(total) >= observed_sum for total in sums) / 2**count
    rng, tasks_of = random.Random(0), sorted(Counter(sizes).items())
    sums = (  # of tasks with the same size only the number of flips matters
        math.fsum(size * (tasks - 2 * rng.getrandbits(tasks).bit_count()) for size, tasks in tasks_of)
        for _ in range(RANDOM_FLIPS)
    )
    # The observed order counts as one of the flips, so that the share is never zero.
    return (sum(abs(total) >= observed_sum for total in sums) + 1) / (RANDOM_FLIPS + 1)


def _check(attempts: int, successes: int, k: int) -> None:
    if not (0 <= successes <= attempts and 1 <= k <= attempts):
        raise ValueError(f"{successes} successes in {attempts} attempts, and {k} of them: 0 <= c <= n and 1 <= k <= n")
