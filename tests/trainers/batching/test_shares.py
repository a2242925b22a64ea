"""Shares of samples: everything once, none empty, and about the same cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainers.batching.packing import even_shares


def test_the_most_expensive_go_first_and_a_share_is_in_order() -> None:
    assert even_shares([1.0, 9.0, 5.0, 4.0, 1.0], 2) == [[0, 1], [2, 3, 4]]
    assert even_shares([3.0, 2.0], 3) == [[0], [1]]
    assert even_shares([], 2) == []
    assert even_shares([0.0] * 4, 2) == [[0, 2], [1, 3]]  # without a cost, by number


@given(st.lists(st.integers(0, 10**6), max_size=20), st.integers(1, 6))
def test_every_sample_is_in_one_share_and_no_share_is_far_above_the_mean(costs: list[int], number: int) -> None:
    shares = even_shares(costs, number)
    assert sorted(index for share in shares for index in share) == list(range(len(costs)))
    assert len(shares) == min(number, len(costs)) and all(share == sorted(share) and share for share in shares)
    # The share that ends last was the cheapest one when it got its last sample.
    largest = max((sum(costs[index] for index in share) for share in shares), default=0)
    assert largest <= sum(costs) / number + max(costs, default=0)
