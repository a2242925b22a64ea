"""Plans of micro-batches: everything once, within the limits, nearly full, and even over ranks.

An episode is split over micro-batches only where one cannot hold all of its rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.batching.packing import Layout, flops_crossover, plan_packed, plan_padded, round_up, row_cost
from trainers.families.shape import ModelShape

episodes_strategy = st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=14)
limits = {"max_tokens": st.integers(1, 90), "multiple": st.sampled_from([1, 4]), "ranks": st.integers(1, 4)}


def width(layout: Layout, episodes: list[list[int]], multiple: int = 1) -> int:
    """Tokens of one sequence of a micro-batch."""
    return round_up(max(sum(episodes[e][r] for e, r in sequence) for sequence in layout), multiple)


def area(layout: Layout, episodes: list[list[int]], multiple: int = 1) -> int:
    """Tokens of a micro-batch, padding included."""
    return len(layout) * width(layout, episodes, multiple)


def cost(layout: Layout, episodes: list[list[int]], *, padded: bool) -> float:
    if padded:
        return len(layout) * row_cost(width(layout, episodes))
    return sum(row_cost(episodes[e][r]) for sequence in layout for e, r in sequence)


def check_plan(plans: list[list[Layout]], episodes: list[list[int]], ranks: int) -> set[int]:
    """What holds for every plan, whatever the limits; returns the episodes that are split."""
    assert len(plans) == ranks
    counts = [len(plan) for plan in plans]
    assert max(counts) - min(counts) <= 1, "ranks run in lock-step"
    layouts = [layout for plan in plans for layout in plan]
    assert all(sequence for layout in layouts for sequence in layout)
    placed = Counter(place for layout in layouts for sequence in layout for place in sequence)
    assert placed == Counter((e, r) for e, rows in enumerate(episodes) for r, length in enumerate(rows) if length)
    homes: dict[int, set[int]] = {}
    for number, layout in enumerate(layouts):
        for sequence in layout:
            for e, _ in sequence:
                homes.setdefault(e, set()).add(number)
    split = {e for e, numbers in homes.items() if len(numbers) > 1}
    for plan in plans:
        are_parts = [[e in split for sequence in layout for e, _ in sequence] for layout in plan]
        kinds = [any(of_rows) for of_rows in are_parts]
        assert kinds == sorted(kinds, reverse=True), "split episodes come first, in the same rounds on all ranks"
    return split


def check_limit(layout: Layout, episodes: list[list[int]], multiple: int, max_tokens: int) -> None:
    """Only a row that is longer than the limit needs more, and it shares with nothing."""
    assert area(layout, episodes, multiple) <= max_tokens or sum(map(len, layout)) == 1


@given(episodes_strategy, st.integers(1, 60), st.fixed_dictionaries(limits))
def test_packed_plans_keep_every_row_once_and_the_limits(episodes, pack_length, given_limits):
    plans = plan_packed(episodes, pack_length=pack_length, **given_limits)
    split = check_plan(plans, episodes, given_limits["ranks"])
    multiple, max_tokens = given_limits["multiple"], given_limits["max_tokens"]
    sequence = min(pack_length, max_tokens) // multiple * multiple
    assert all(sum(episodes[e]) > sequence for e in split), "an episode was split that fits into one sequence"
    longest_row = max((length for rows in episodes for length in rows), default=0)
    for layout in (layout for plan in plans for layout in plan):
        assert width(layout, episodes, multiple) <= round_up(max(pack_length, longest_row), multiple)
        check_limit(layout, episodes, multiple, max_tokens)


@given(episodes_strategy, st.fixed_dictionaries(limits))
def test_padded_plans_keep_every_row_once_and_the_limits(episodes, given_limits):
    plans = plan_padded(episodes, **given_limits)
    multiple, max_tokens = given_limits["multiple"], given_limits["max_tokens"]
    for e in check_plan(plans, episodes, given_limits["ranks"]):
        read = [length for length in episodes[e] if length]
        assert len(read) * round_up(max(read), multiple) > max_tokens, "an episode was split that fits"
    for layout in (layout for plan in plans for layout in plan):
        assert all(len(sequence) == 1 for sequence in layout)
        check_limit(layout, episodes, multiple, max_tokens)


@given(episodes_strategy, st.integers(0, 60), st.fixed_dictionaries(limits), st.randoms(use_true_random=False))
def test_plans_do_not_depend_on_the_order_of_episodes_or_rows(episodes, pack_length, given_limits, shuffler):
    def shapes(given: list[list[int]]) -> list[list[list[list[int]]]]:
        plan = plan_packed(given, pack_length=pack_length, **given_limits) if pack_length else None
        plan = plan or plan_padded(given, **given_limits)
        return [[[[given[e][r] for e, r in seq] for seq in layout] for layout in part] for part in plan]

    shuffled = [shuffler.sample(rows, len(rows)) for rows in shuffler.sample(episodes, len(episodes))]
    assert shapes(episodes) == shapes(episodes)
    assert shapes(episodes) == shapes(shuffled)


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(30, 90))
def test_no_two_micro_batches_of_a_best_fit_would_fit_into_one(lengths, pack_length):
    (plan,) = plan_packed([[n] for n in lengths], max_tokens=pack_length, pack_length=pack_length)
    # Best fit leaves at most one micro-batch half empty, and filling them evenly does not make them more.
    assert len(plan) <= max(1, 2 * sum(lengths) / pack_length) + 1
    assert not lengths or len(plan) >= sum(lengths) / pack_length


def lognormal(count: int, *, median: float = 600, sigma: float = 0.8, most: int = 8192, seed: int = 0) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(math.log(median), sigma, count)
    return np.clip(drawn, 1, most).astype(int).tolist()


def cut(lengths: list[int], sizes: list[int]) -> list[list[int]]:
    """Cut row lengths into episodes of the sizes, again and again."""
    episodes, start = [], 0
    while start < len(lengths):
        size = sizes[len(episodes) % len(sizes)]
        episodes.append(lengths[start : start + size])
        start += size
    return episodes


MIXES = {
    "one row each": cut(lognormal(1024), [1]),
    "one to four rows each": cut(lognormal(1024, seed=1), [1, 4, 2, 3]),
    "long rows": cut(lognormal(512, median=3000, sigma=0.5, seed=2), [1]),
    "few": cut(lognormal(64, seed=3), [1]),
}


CASES = [(mix, max_tokens) for mix in MIXES for max_tokens in (8192, 32768) if (mix, max_tokens) != ("few", 32768)]


@pytest.mark.parametrize(("mix", "max_tokens"), CASES)
def test_padding_of_a_lognormal_mix_is_at_most_five_percent(mix, max_tokens):
    episodes = MIXES[mix]
    (plan,) = plan_packed(episodes, max_tokens=max_tokens, pack_length=8192)
    tokens = sum(map(sum, episodes))
    assert 1 - tokens / sum(area(layout, episodes) for layout in plan) <= 0.05
    (padded,) = plan_padded(episodes, max_tokens=max_tokens)
    assert len(plan) <= len(padded)


def test_full_sequences_waste_at_most_five_percent_too():
    for mix in ("one row each", "one to four rows each"):
        (plan,) = plan_packed(MIXES[mix], max_tokens=8192, pack_length=8192)
        assert len(plan) - 1 <= sum(map(sum, MIXES[mix])) / 8192 / 0.95


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("pack_length", [0, 8192])
def test_ranks_have_the_same_rounds_and_about_the_same_flops_in_each(pack_length, ranks):
    episodes = MIXES["one to four rows each"]
    given = {"max_tokens": 16384, "ranks": ranks}
    plans = plan_packed(episodes, pack_length=pack_length, **given) if pack_length else plan_padded(episodes, **given)
    check_plan(plans, episodes, ranks)
    costs = np.zeros((ranks, max(map(len, plans))))
    for rank, plan in enumerate(plans):
        costs[rank, : len(plan)] = [cost(layout, episodes, padded=not pack_length) for layout in plan]
    per_rank = costs.sum(1)
    # Padding to the longest row makes lumps; packing does not.
    assert per_rank.max() / per_rank.mean() <= (1.05 if pack_length else 1.2)
    assert costs.max(0).sum() / per_rank.mean() <= (1.05 if pack_length else 1.3), "waiting in lock-step"


GROWING = [3_200 * n for n in range(1, 11)]
"""Rows of an episode whose history is rewritten at each turn: 176,000 tokens, the longest row 32,000."""


@pytest.mark.parametrize("pack_length", [0, 32_768])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_only_the_longest_row_must_fit(pack_length, ranks):
    episodes = [GROWING, *cut(lognormal(64, seed=4), [1, 3])]
    given = {"max_tokens": 32_768, "ranks": ranks}
    plans = plan_packed(episodes, pack_length=pack_length, **given) if pack_length else plan_padded(episodes, **given)
    assert check_plan(plans, episodes, ranks) == {0}
    assert max(area(layout, episodes) for plan in plans for layout in plan) <= 32_768
    homes = {rank for rank, plan in enumerate(plans) for layout in plan for s in layout for e, _ in s if e == 0}
    assert len(homes) >= min(ranks, 6), "one rank would compute a large episode while the others wait"


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_split_episodes_waste_little_and_are_balanced(ranks):
    episodes = [[n - 100 * i for n in GROWING] for i in range(12)] + cut(lognormal(256, seed=5), [1, 2])
    plans = plan_packed(episodes, max_tokens=32_768, pack_length=32_768, ranks=ranks)
    assert check_plan(plans, episodes, ranks) == set(range(12))
    costs = np.zeros((ranks, max(map(len, plans))))
    for rank, plan in enumerate(plans):
        costs[rank, : len(plan)] = [cost(layout, episodes, padded=False) for layout in plan]
    assert costs.sum(1).max() / costs.sum(1).mean() <= 1.1
    assert costs.max(0).sum() / costs.sum(1).mean() <= 1.25, "waiting in lock-step"
    assert len([x for plan in plans for x in plan]) <= round_up(
        math.ceil(sum(map(sum, episodes)) / 32_768 / 0.8), ranks
    )


@pytest.mark.parametrize(
    ("pack_length", "max_tokens", "multiple", "ranks", "crossover", "digest"),
    [
        (0, 8192, 8, 3, 10_000.0, "4b916f499aff21bf"),
        (0, 3000, 1, 2, 500.0, "025a5e49d0b7f71a"),  # some episodes are split
        (0, 1500, 64, 4, 10_000.0, "b11c3bba5aba6539"),  # some rows are longer than a micro-batch
        (8192, 8192, 8, 3, 10_000.0, "dc95ab87bd720258"),
        (3000, 3000, 1, 2, 500.0, "7a9508ec6f561932"),
        (1500, 1500, 64, 4, 10_000.0, "671ca4bf6528c90c"),
        (1000, 8192, 8, 1, 10_000.0, "15c1ec4850527ad1"),  # several sequences, rows longer than one
        (2100, 8500, 1, 3, 500.0, "fa052a38b0b5d799"),
    ],
)
def test_plans_stay_what_they_are(
    pack_length: int, max_tokens: int, multiple: int, ranks: int, crossover: float, digest: str
) -> None:
    """A resumed run repeats its steps bit by bit, also by a later version."""
    given = {"max_tokens": max_tokens, "multiple": multiple, "ranks": ranks, "crossover": crossover}
    plans = []
    for count in (200, 9, 30):
        episodes = [[1 + (37 * e * e + 101 * r) % 2000 for r in range((e + count) % 4)] for e in range(count)]
        packed = plan_packed(episodes, pack_length=pack_length, **given) if pack_length else None
        plans.append(packed or plan_padded(episodes, **given))
    assert hashlib.sha256(json.dumps(plans).encode()).hexdigest()[:16] == digest


def test_flops_and_not_tokens_are_shared_out():
    episodes = [[8000], *([1000] for _ in range(8))]  # the same number of tokens, not the same number of FLOPs
    first, second = plan_packed(episodes, max_tokens=16000, pack_length=16000, ranks=2, crossover=2000.0)
    loads = [sum(row_cost(episodes[e][r], 2000.0) for s in layout for e, r in s) for layout in (first[0], second[0])]
    assert loads == [8000 + 32000, 8 * 1500]
    even = plan_packed(episodes + [[1000]] * 8, max_tokens=16000, pack_length=16000, ranks=2, crossover=math.inf)
    tokens = [sum(sum(1000 if e else 8000 for e, _ in s) for s in layout) for (layout,) in even]
    assert tokens == [12000, 12000]


def test_micro_batches_worked_by_hand():
    # Two micro-batches of two sequences of 7 do; filled evenly they hold 6 and 5, and 7, 2 and 1. The larger is first.
    (plan,) = plan_packed([[7], [6], [5], [2], [1]], max_tokens=14, pack_length=7, crossover=math.inf)
    assert plan == [[[(1, 0)], [(2, 0)]], [[(0, 0)], [(3, 0), (4, 0)]]]
    # Three rows of an episode that is larger than the limit go to two micro-batches, before the episode that fits.
    (plan,) = plan_packed([[3, 3], [4, 4, 4]], max_tokens=8, pack_length=8)
    assert plan == [[[(1, 0), (1, 2)]], [[(1, 1)]], [[(0, 0), (0, 1)]]]
    (plan,) = plan_padded([[3, 3], [4, 4, 4]], max_tokens=8)
    assert plan == [[[(1, 0)], [(1, 1)]], [[(1, 2)]], [[(0, 0)], [(0, 1)]]]
    # A row that is longer than the limit has a micro-batch of its own, and so its episode is split.
    assert plan_packed([[9, 2]], max_tokens=8, pack_length=8) == [[[[(0, 0)]], [[(0, 1)]]]]
    # What fits into a micro-batch, but not into one sequence of it, is not split.
    assert plan_packed([[4, 4, 4]], max_tokens=15, pack_length=5) == [[[[(0, 0)], [(0, 1)], [(0, 2)]]]]
    # Two full sequences are fewer tokens than the best fit's three of 4.
    (plan,) = plan_packed([[2], [4], [1, 3]], max_tokens=15, pack_length=5, crossover=math.inf)
    assert plan == [[[(1, 0), (2, 0)], [(2, 1), (0, 0)]]]
    # A row that is not read has no place; an episode without rows neither.
    assert plan_packed([[0, 3], [], [0]], max_tokens=8, pack_length=8) == [[[[(0, 1)]]]]
    assert plan_packed([], max_tokens=8, pack_length=8, ranks=2) == [[], []]
    assert plan_padded([[]], max_tokens=8, ranks=2) == [[], []]


def test_a_split_episode_gets_more_micro_batches_than_a_whole_one_of_its_size():
    """It is computed forward twice: its 120 tokens cost 160, so of seven micro-batches four are its own."""
    plans = plan_packed([[20] * 6, *[[10]] * 12], max_tokens=100, pack_length=100, ranks=7, crossover=math.inf)
    assert sorted(sum(e == 0 for s in layout for e, _ in s) for (layout,) in plans) == [0, 0, 0, 1, 1, 2, 2]


def test_ranks_take_turns_at_the_most_expensive_micro_batch():
    plans = plan_packed([[8], [7], [6], [5]], max_tokens=8, pack_length=8, ranks=2)
    assert plans == [[[[(0, 0)]], [[(3, 0)]]], [[[(1, 0)]], [[(2, 0)]]]]


def test_the_crossover_is_parameters_over_layers_times_width():
    shape = ModelShape(
        hidden_size=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        num_hidden_layers=3,
        intermediate_size=16,
        vocab_size=100,
        max_position_embeddings=64,
    )
    layer = 8 * 16 + 2 * (8 * 8) + 16 * 8 + 3 * 8 * 16  # q, k and v, o, the feed-forward's three
    assert flops_crossover(shape) == (3 * layer + 8 * 100) / (3 * 16)
    experts = replace(shape, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=8)
    assert flops_crossover(experts) == flops_crossover(shape), "two experts of 8 are one MLP of 16"
    assert row_cost(50, 100.0) == 75.0 and row_cost(10_000) == 20_000.0


def test_planning_twice_gives_the_same_plan():
    episodes = cut(lognormal(300), [2, 1])
    random.Random(0).shuffle(episodes)
    plans = [plan_packed(episodes, max_tokens=4096, pack_length=2048, ranks=3) for _ in range(2)]
    assert plans[0] == plans[1]
