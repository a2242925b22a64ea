"""The length bias: 1 when all that finished was trained on, below it while short groups are ahead."""

from __future__ import annotations

from dataclasses import asdict

from tests.trainers.controller.test_ready_groups import make_group
from trainers.metrics.length_bias import LengthBias


def test_the_bias_counts_the_groups_that_are_trained_on() -> None:
    lengths = LengthBias()
    assert lengths.bias == 1.0
    short, long = make_group(1, 1), make_group(2, 3)  # 2 and 6 tokens
    for group in (short, long):
        lengths.count_finished(group)
    lengths.count_trained(short)
    assert lengths.bias == 0.5
    again = LengthBias(**asdict(lengths))
    again.count_trained(long)
    assert (lengths.bias, again.bias) == (0.5, 1.0)
