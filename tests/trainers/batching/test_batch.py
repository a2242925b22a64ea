"""Layout of samples: nothing lost, nothing doubled, and packing invisible to a loss."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Row
from forge_env.core.errors import InvariantError
from trainers.batching.batch import MicroBatch, Sample, by_sample, pack
from trainers.batching.empty import batches_to_compile, empty_batch


def make_row(token_ids: list[int], mask: list[bool], logprobs: list[float] | None = None) -> Row:
    return Row(
        token_ids=tuple(token_ids),
        loss_mask=tuple(mask),
        generator_logprobs=tuple(logprobs or [-float(i + 1) if m else 0.0 for i, m in enumerate(mask)]),
        versions=tuple(0 if m else -1 for m in mask),
    )


rows = st.lists(st.tuples(st.integers(1, 99), st.booleans()), min_size=1, max_size=9).map(
    lambda pairs: make_row([token for token, _ in pairs], [mask for _, mask in pairs])
)
samples_strategy = st.lists(
    st.builds(lambda rows, a: Sample(rows=tuple(rows), advantage=a), st.lists(rows, max_size=3), st.floats(-2, 2)),
    max_size=7,
)


def model_values(batch: MicroBatch) -> torch.Tensor:
    """A stand-in for a causal model: a value that depends on the token and on its place in its row, (B, L)."""
    places = torch.arange(batch.tokens.shape[1]).expand(batch.tokens.shape)
    return batch.tokens * 100 + (places if batch.positions is None else batch.positions) + 1


def loss_layout(batches: list[MicroBatch]) -> dict[int, tuple]:
    """What a loss sees of each sample, without the padding on its right."""
    seen = {}
    for batch in batches:
        values, scattered = model_values(batch), batch.scatter(model_values(batch).flatten()[batch.selected])
        picked = values.flatten()[batch.source.clamp(min=0)]
        laid_out = torch.where(batch.source >= 0, picked, 0)
        for line, index in enumerate(batch.samples):
            assert index not in seen
            width = int((batch.source[line] >= 0).sum())
            seen[index] = (
                laid_out[line, :width].tolist(),
                scattered[line, :width].tolist(),
                batch.loss_mask[line, :width].tolist(),
                batch.generator_logprobs[line, :width].tolist(),
                batch.advantages[line].tolist(),
            )
            assert not batch.loss_mask[line, width:].any()
            assert not laid_out[line, width:].any()
    return seen


@given(samples_strategy, st.integers(1, 40), st.integers(1, 20), st.sampled_from([1, 4]))
def test_packing_and_padding_give_the_loss_the_same_values(samples, max_tokens, pack_length, multiple):
    padded = pack(samples, max_tokens=1000, pack_length=0, pad_id=0)
    packed = pack(samples, max_tokens=max_tokens, pack_length=pack_length, pad_id=0, multiple=multiple)
    whole = {index for batch in packed if not batch.is_part for index in batch.samples}
    whole -= {index for batch in packed if batch.is_part for index in batch.samples}
    expected = {index: values for index, values in loss_layout(padded).items() if index in whole}
    assert loss_layout([batch for batch in packed if not batch.is_part]) == expected


def every_target(batches: list[MicroBatch]) -> dict[int, tuple]:
    """Sample, token, generator logprob, advantage and model value of every sampled target, by its number."""
    seen = {}
    for batch in batches:
        lines = (batch.slots // batch.source.shape[1]).tolist()
        columns = (
            batch.targets,
            *(
                values.expand(batch.source.shape).flatten()[batch.slots]
                for values in (
                    batch.generator_logprobs,
                    batch.advantages,
                    batch.scatter(model_values(batch).flatten()[batch.selected]),
                )
            ),
        )
        assert len(set(batch.selected.tolist())) == len(batch.selected) == int(batch.loss_mask.sum())
        for number, line, *values in zip(
            batch.target_index.tolist(), lines, *(c.tolist() for c in columns), strict=True
        ):
            assert number not in seen
            seen[number] = (batch.samples[line], *values)
    return seen


@given(samples_strategy, st.integers(1, 40), st.sampled_from([0, 5, 16]), st.integers(1, 3))
def test_every_sampled_target_appears_exactly_once(samples, max_tokens, pack_length, ranks):
    """Whatever the micro-batches are, on one rank or another; also where its episode is split."""
    samples = [replace(s, advantage=tuple(float(n) for n in range(s.num_targets))) for s in samples]
    limits = {"max_tokens": max_tokens, "pack_length": pack_length, "pad_id": 0, "ranks": ranks}
    found = every_target([batch for rank in range(ranks) for batch in pack(samples, rank=rank, **limits)])
    expected = [
        (index, row.token_ids[i], row.generator_logprobs[i])
        for index, sample in enumerate(samples)
        for row in sample.rows
        for i in range(1, len(row.loss_mask))
        if row.loss_mask[i]
    ]
    assert [found[number][:3] for number in range(len(found))] == expected
    assert found == every_target(pack(samples, max_tokens=1000, pack_length=0, pad_id=0))


@given(samples_strategy, st.integers(1, 40), st.sampled_from([0, 5, 16]))
def test_micro_batches_keep_to_the_limit_unless_one_row_needs_more(samples, max_tokens, pack_length):
    for batch in pack(samples, max_tokens=max_tokens, pack_length=pack_length, pad_id=0):
        assert batch.tokens.numel() <= max_tokens or (len(batch.tokens) == 1 and batch.source.shape[0] == 1)


def test_one_episode_of_two_rows_worked_by_hand():
    first = make_row([5, 6, 7, 8], [False, False, True, True])
    second = make_row([9, 3, 4, 2], [False, True, True, False])  # the last token trains nothing and is not read
    (batch,) = pack([Sample(rows=(first, second), advantage=2.0)], max_tokens=99, pack_length=0, pad_id=0)
    assert batch.tokens.tolist() == [[5, 6, 7], [9, 3, 0]]
    assert batch.positions is None
    assert batch.source.tolist() == [[0, 1, 2, 3, 4]]
    assert batch.selected.tolist() == [1, 2, 3, 4]
    assert batch.targets.tolist() == [7, 8, 3, 4]
    assert batch.loss_mask.tolist() == [[False, True, True, True, True]]
    assert batch.generator_logprobs.tolist() == [[0.0, -3.0, -4.0, -2.0, -3.0]]
    assert batch.advantages.tolist() == [[2.0]]
    assert batch.units == (4, 1)
    assert batch.target_index.tolist() == [0, 1, 2, 3] and not batch.is_part


def test_packed_positions_restart_with_each_row_and_with_the_padding():
    episodes = [Sample(rows=(make_row([1, 2, 3], [False, True, True]),)) for _ in range(2)]
    (batch,) = pack(episodes, max_tokens=6, pack_length=6, pad_id=0, multiple=6)
    assert batch.tokens.tolist() == [[1, 2, 1, 2, 0, 0]]
    assert batch.positions is not None
    assert batch.positions.tolist() == [[0, 1, 0, 1, 0, 1]]


def test_non_finite_generator_logprobs_leave_the_mask_and_the_counts():
    row = make_row([1, 2, 3, 4], [False, True, True, True], [0.0, math.nan, -math.inf, -0.5])
    (batch,) = pack([Sample(rows=(row,))], max_tokens=9, pack_length=0, pad_id=0)
    assert batch.loss_mask.tolist() == [[False, False, True]]
    assert batch.generator_logprobs.tolist() == [[0.0, 0.0, -0.5]]
    assert batch.units == (1, 1)
    assert batch.targets.tolist() == [2, 3, 4]  # their logprobs are still wanted


def test_an_episode_of_two_rows_that_do_not_fit_together_worked_by_hand():
    first = make_row([5, 6, 7, 8], [False, False, True, True], [0.0, 0.0, math.nan, math.nan])
    second = make_row([9, 3, 4, 2], [False, True, True, False])
    sample = Sample(rows=(first, second), advantage=(1.0, 2.0, 3.0, 4.0), old_logprobs=(-1.0, -2.0, -3.0, -4.0))
    other = Sample(rows=(make_row([1, 2], [False, True]),), advantage=5.0, old_logprobs=(-5.0,))
    one, two, three = pack([other, sample], max_tokens=4, pack_length=0, pad_id=0)
    assert [(batch.samples, batch.is_part) for batch in (one, two, three)] == [
        ((1,), True),
        ((1,), True),
        ((0,), False),
    ]
    assert one.tokens.tolist() == [[5, 6, 7]] and two.tokens.tolist() == [[9, 3]]
    assert (
        one.target_index.tolist() == [1, 2]
        and two.target_index.tolist() == [3, 4]
        and three.target_index.tolist() == [0]
    )
    assert one.advantages.tolist() == [[0.0, 1.0, 2.0]] and two.advantages.tolist() == [[3.0, 4.0]]
    assert two.old_logprobs is not None and two.old_logprobs.tolist() == [[-3.0, -4.0]]
    # It counts as an episode where its first row is, though the valid tokens are those of the second.
    assert [batch.units for batch in (one, two, three)] == [(0, 1), (2, 0), (1, 1)]
    of_samples = by_sample([other, sample], torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0]))
    assert [values.tolist() for values in of_samples] == [[0.5], [1.0, 2.0, 3.0, 4.0]]


@given(samples_strategy, st.integers(1, 40), st.sampled_from([0, 5]))
def test_a_sample_knows_its_part_of_the_denominators(samples, max_tokens, pack_length):
    batches = pack(samples, max_tokens=max_tokens, pack_length=pack_length, pad_id=0)
    assert [sum(sample.units[i] for sample in samples) for i in (0, 1)] == [
        sum(b.units[i] for b in batches) for i in (0, 1)
    ]


def test_the_denominators_of_a_sample_worked_by_hand():
    first_is_sampled = make_row([1, 2], [True, False])
    broken = make_row([1, 2, 3], [True, True, True], [-0.5, math.nan, -0.5])
    assert Sample(rows=(first_is_sampled,)).units == (0, 0)
    assert Sample(rows=(first_is_sampled, broken)).units == (1, 1)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [(0.0, False), (-0.5, True), ((0.0, 0.0), False), ((0.0, 0.5), True), (np.zeros(2), False), (np.eye(2)[1], True)],
)
def test_a_sample_has_an_advantage_if_one_of_its_targets_has_one(advantage, expected):
    assert Sample(rows=(), advantage=advantage).has_advantage is expected


def test_reference_logprobs_are_laid_out_or_refused():
    row = make_row([1, 2, 3, 4], [False, True, False, True])
    sample = Sample(rows=(row,), reference_logprobs=(-0.1, -0.2))
    (batch,) = pack([sample], max_tokens=9, pack_length=0, pad_id=0)
    assert batch.reference_logprobs is not None
    torch.testing.assert_close(batch.reference_logprobs, torch.tensor([[-0.1, 0.0, -0.2]]))
    (mixed,) = pack([sample, Sample(rows=(row,))], max_tokens=9, pack_length=0, pad_id=0)
    assert mixed.reference_logprobs is None
    with pytest.raises(InvariantError, match="1 values of reference_logprobs for 2 sampled"):
        pack([Sample(rows=(row,), reference_logprobs=(-0.1,))], max_tokens=9, pack_length=0, pad_id=0)
    with pytest.raises(InvariantError, match="3 values of advantage for 2 sampled"):
        pack([Sample(rows=(row,), advantage=(0.1, 0.2, 0.3))], max_tokens=9, pack_length=0, pad_id=0)


@pytest.mark.parametrize("form", [tuple, list, np.float32, np.float64])
def test_values_of_targets_may_be_numbers_of_python_or_an_array(form):
    row = make_row([1, 2, 3], [False, True, True])
    values = form((-0.25, 1 / 3)) if form in (tuple, list) else np.array((-0.25, 1 / 3), dtype=form)
    sample = Sample(rows=(row,), advantage=values, reference_logprobs=values, old_logprobs=values)
    (batch,) = pack([sample], max_tokens=9, pack_length=0, pad_id=0)
    for found in (batch.advantages, batch.reference_logprobs, batch.old_logprobs):
        assert found is not None and torch.equal(found, torch.tensor([[-0.25, 1 / 3]]))
    assert sample.has_advantage
    with pytest.raises(InvariantError, match="2 values of advantage for 1 sampled"):
        pack([Sample(rows=(make_row([1, 2], [False, True]),), advantage=values)], max_tokens=9, pack_length=0, pad_id=0)


def test_fields_of_a_row_with_different_lengths_raise():
    row = Row(token_ids=(1, 2), loss_mask=(False, True), generator_logprobs=(0.0,), versions=(-1, 0))
    with pytest.raises(InvariantError, match="different lengths"):
        pack([Sample(rows=(row,))], max_tokens=9, pack_length=0, pad_id=0)


@pytest.mark.parametrize("multiple", [1, 2, 128])
def test_a_long_batch_to_compile_is_nearly_full_and_no_longer(multiple):
    short = batches_to_compile(multiple, sequences=1)
    *same, long = batches_to_compile(multiple, sequences=1, full=16384)
    assert [batch.tokens.shape for batch in same] == [batch.tokens.shape for batch in short]
    length = long.tokens.shape[1]
    assert 0.9 * 16384 < length <= 16384 and length % multiple == 0
    assert multiple > 1 or length % 2  # code for even lengths only would be compiled again
    assert long.positions is not None and long.positions.shape == long.tokens.shape
    assert len(batches_to_compile(128, sequences=1, full=1024)) == 2, "no longer than the others"


def test_an_empty_batch_counts_nothing():
    assert empty_batch(4).units == (0, 0)
    assert empty_batch(4).tokens.shape == (1, 4)
