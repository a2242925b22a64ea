"""Routes in micro-batches: each token has its own experts, wherever it is laid out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.errors import InvariantError
from forge_env.core.routes import Routes
from tests.trainers.batching.test_batch import make_row
from trainers.batching.batch import MicroBatch, Sample, pack
from trainers.batching.empty import empty_batch
from trainers.batching.routes import highest_expert

LAYERS, ACTIVE = 3, 2
Spans = list[tuple[int, int]]
# Rows as loss masks, and where each of their routes begins and how many tokens it has.
masks = st.lists(st.booleans(), min_size=1, max_size=9)
spans = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3)
episodes = st.lists(st.lists(st.tuples(masks, spans), max_size=3), max_size=6)


def make_samples(drawn: list[list[tuple[list[bool], Spans]]], dtype: type) -> list[Sample]:
    """Samples whose tokens, from 1 on, and experts all differ."""
    tokens, experts = iter(range(1, 10_000)), iter(range(30_000))

    def routes(start: int, count: int) -> Routes:
        numbers = [next(experts) % np.iinfo(dtype).max for _ in range(count * LAYERS * ACTIVE)]
        return Routes.of(start, np.array(numbers, dtype=dtype).reshape(count, LAYERS, ACTIVE))

    def row(mask: list[bool], spans: Spans) -> Any:
        made = make_row([next(tokens) for _ in mask], mask)
        return dataclasses.replace(made, routes=tuple(routes(start, count) for start, count in spans))

    return [Sample(rows=tuple(row(mask, spans) for mask, spans in rows), advantage=1.0) for rows in drawn]


def experts_of(samples: list[Sample]) -> dict[int, list[list[int]]]:
    """Of each token that has routes its experts, one token at a time."""
    found: dict[int, list[list[int]]] = {}
    for row in (row for sample in samples for row in sample.rows):
        for place, token in enumerate(row.token_ids):
            for routes in row.routes:
                if routes.start <= place < routes.start + routes.tokens:
                    found[token] = routes.experts[place - routes.start].tolist()
                    break
    return found


def places(batches: list[MicroBatch]) -> Iterator[tuple[int, Any]]:
    """Every place of some micro-batches: its token, 0 for padding, and its experts."""
    for batch in batches:
        assert batch.routes is not None and batch.routes.shape == (*batch.tokens.shape, LAYERS, ACTIVE)
        yield from zip(batch.tokens.flatten().tolist(), batch.routes.flatten(0, 1).tolist(), strict=True)


@given(
    episodes,
    st.integers(1, 40),
    st.sampled_from([0, 5, 16]),
    st.integers(1, 3),
    st.sampled_from([1, 4]),
    st.sampled_from([np.uint8, np.uint16]),
)
def test_each_token_has_its_own_experts(drawn, max_tokens, pack_length, ranks, multiple, dtype):
    """Padded, packed, and of episodes that are split; the first of two routes of a token counts."""
    samples = make_samples(drawn, dtype)
    limits = {"max_tokens": max_tokens, "pack_length": pack_length, "pad_id": 0, "ranks": ranks, "multiple": multiple}
    batches = [batch for rank in range(ranks) for batch in pack(samples, rank=rank, with_routes=True, **limits)]
    if not any(row.routes for sample in samples for row in sample.rows):
        assert all(batch.routes is None and batch.rows_read == (0, 0) for batch in batches)
        return
    expected, own = experts_of(samples), [[-1] * ACTIVE] * LAYERS
    for token, found in places(batches):
        assert found == (expected.get(token, own) if token else own)
    for batch in batches:
        read = batch.tokens[batch.tokens > 0].tolist()
        assert batch.rows_read == (len(read), sum(token not in expected for token in read))


def test_routes_are_left_out_unless_asked_for():
    samples = make_samples([[([False, True], [(0, 1)])]], np.uint8)
    (batch,) = pack(samples, max_tokens=10, pack_length=0, pad_id=0)
    assert batch.routes is None and empty_batch(4).routes is None


def test_routes_go_to_the_device_with_the_other_tensors():
    samples = make_samples([[([False, True], [(0, 1)])]], np.uint8)
    (batch,) = pack(samples, max_tokens=10, pack_length=0, pad_id=0, with_routes=True)
    moved = batch.to(torch.device("meta")).routes
    assert moved is not None and moved.device.type == "meta" and moved.dtype == torch.int16


def test_routes_of_two_models_are_refused_on_every_rank():
    (sample,) = make_samples([[([False, True], [(0, 1)])]], np.uint8)
    deeper = Routes.of(0, np.zeros((1, LAYERS + 1, ACTIVE), dtype=np.uint8))
    other = dataclasses.replace(sample.rows[0], routes=(deeper,))
    for rank in range(2):
        with pytest.raises(InvariantError, match="2 experts in 3 layers and 2 experts in 4 layers"):
            pack(
                [sample, Sample(rows=(other,))],
                max_tokens=10,
                pack_length=0,
                pad_id=0,
                rank=rank,
                ranks=2,
                with_routes=True,
            )


def test_the_highest_expert_of_all_rows():
    samples = make_samples([[([False, True, True], [(0, 2), (2, 0)])], [([True], [])]], np.uint16)
    rows = [row for sample in samples for row in sample.rows]
    assert highest_expert(rows) == math.prod((2, LAYERS, ACTIVE)) - 1
    assert highest_expert(rows[1:]) == -1
