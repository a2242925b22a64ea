"""Group-relative advantages against hand numbers and their properties."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.advantages import group_relative

rewards = st.lists(st.floats(-10, 10) | st.sampled_from([0.0, 1.0]), max_size=16)


def test_by_hand() -> None:
    """Mean 0.25, squared deviations 3 / 16 + 9 / 16, divided by n - 1 = 3: a standard deviation of 0.5."""
    assert group_relative([1.0, 0.0, 0.0, 0.0], std_eps=0.0) == [1.5, -0.5, -0.5, -0.5]
    assert group_relative([1.0, 0.0, 0.0, 0.0], std_eps=0.5) == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize("same", [[], [0.7], [0.1] * 3, [1.0] * 8, [-0.3] * 7, [1e-300] * 5])
def test_one_reward_teaches_nothing(same: list[float]) -> None:
    assert group_relative(same) == [0.0] * len(same)
    assert group_relative(same, std_eps=0.0) == [0.0] * len(same)


@settings(deadline=None)
@given(rewards)
def test_mean_is_zero_and_order_is_kept(values: list[float]) -> None:
    found = group_relative(values)
    assert len(found) == len(values)
    assert math.fsum(found) == pytest.approx(0.0, abs=1e-6)
    by_reward = sorted(zip(values, found, strict=True))
    assert all(a <= b for (_, a), (_, b) in pairwise(by_reward))


@settings(deadline=None)
@given(rewards, st.integers(0, 99))
def test_siblings_have_no_order(values: list[float], seed: int) -> None:
    places = random.Random(seed).sample(range(len(values)), len(values))
    found = group_relative(values)
    assert group_relative([values[i] for i in places]) == [found[i] for i in places]


@settings(deadline=None)
@given(st.lists(st.integers(-9, 9).map(float), min_size=2, max_size=16).filter(lambda v: len(set(v)) > 1))
def test_standard_deviation_is_one(values: list[float]) -> None:
    assert statistics.stdev(group_relative(values, std_eps=0.0)) == pytest.approx(1.0)
