"""Samples in a message are the samples that were packed."""

from __future__ import annotations

import math
import pickle

import numpy as np

from tests.trainers.episodes import episode, turn
from trainers.batching.batch import Sample, pack
from trainers.batching.packed_samples import PackedSamples

EPISODE = episode(turn(3, 4, logprobs=(-0.1, math.nan)), turn(5, prompt=2))
SAMPLES = [
    Sample(rows=EPISODE.rows, advantage=0.5, reference_logprobs=(-0.1, -0.2, -0.3)),
    Sample(rows=EPISODE.rows, advantage=np.array((0.1, 0.2, 0.3)), old_logprobs=np.array((-1.0, -2.0, -3.0))),
]


async def test_they_arrive_as_they_were_and_may_be_sent_on() -> None:
    packed = await PackedSamples.of(SAMPLES)
    there = pickle.loads(pickle.dumps(packed))
    again = pickle.loads(pickle.dumps(there))
    assert len(there) == len(again) == 2
    for samples in (there, again, pickle.loads(pickle.dumps(again))):
        assert repr(list(samples)) == repr(SAMPLES)  # NaN is not equal to itself
        assert [batch.tokens.tolist() for batch in pack(samples, max_tokens=64, pack_length=0, pad_id=0)] == [
            batch.tokens.tolist() for batch in pack(SAMPLES, max_tokens=64, pack_length=0, pad_id=0)
        ]


async def test_a_message_of_no_samples_is_one() -> None:
    assert list(pickle.loads(pickle.dumps(await PackedSamples.of([])))) == []
