"""Micro-batches without samples: for ranks that have run out of their own, and for compiling."""

from __future__ import annotations

import dataclasses

import numpy as np

from trainers.batching.batch import MicroBatch, tensor_of
from trainers.batching.packing import round_up


def empty_batch(length: int) -> MicroBatch:
    """A micro-batch of one sequence of padding and no samples, for a rank that has run out of its own."""
    index = tensor_of(np.zeros(1, dtype=np.int64))
    zero = tensor_of(np.zeros((1, 1), dtype=np.float32))
    return MicroBatch(
        samples=(),
        tokens=tensor_of(np.zeros((1, length), dtype=np.int64)),
        positions=None,
        source=index[None],
        selected=index,
        slots=index,
        targets=index,
        target_index=index,
        loss_mask=tensor_of(np.zeros((1, 1), dtype=bool)),
        generator_logprobs=zero,
        reference_logprobs=None,
        old_logprobs=None,
        advantages=zero,
        units=(0, 0),
    )


def batches_to_compile(multiple: int, *, sequences: int, full: int = 0) -> list[MicroBatch]:
    """Micro-batches without samples: two small ones that differ in every size that differs between the batches of a
    run, and with `full` a long one.

    Args:
        multiple: what the length of a sequence is a multiple of.
        sequences: 1 where rows are packed into sequences, and more where each row is a sequence.
        full: the most tokens that the long one, of packed rows, may have; none is made if it has to be as short as the
            others.
    """
    unit = round_up(11, multiple)  # odd if possible: code for even lengths only would be compiled again
    batches = []
    lengths = [[unit, 2 * unit], [unit, unit, 3 * unit]]
    if (repeats := (full // sum(lengths[1]) - 1) // 2 * 2 + 1) > 1:  # odd, as the unit
        lengths.append(lengths[1] * repeats)
    for number, rows in enumerate(lengths):
        length = sum(rows)
        positions = tensor_of(np.concatenate([np.arange(row) for row in rows]).reshape(1, -1))  # strides as in a run
        batch = empty_batch(length)
        if sequences > 1:
            batch = dataclasses.replace(batch, tokens=batch.tokens.expand(sequences + number, length).contiguous())
        else:
            batch = dataclasses.replace(batch, positions=positions)
        batches.append(batch)
    return batches
