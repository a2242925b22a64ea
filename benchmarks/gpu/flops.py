"""Floating-point operations of a training step."""

from __future__ import annotations

from collections.abc import Sequence

from trainers.families.shape import ModelShape

PEAK_FLOPS = 989e12  # of one H100 or H200 in dense bfloat16, by its datasheet


def step_flops(shape: ModelShape, rows: Sequence[int], sampled: float, *, adapters: int = 0) -> float:
    """Operations of the forward and the backward pass, each multiplication and addition of a matrix product counted.

    6 x the parameters of all layers for each token, of the experts only those that compute it, 6 x those of the output
    layer for each sampled token, for no other has logits, and 6 x layers with attention x query_size x length^2 for
    causal attention within each row, half of the square. Of frozen weights it is 4 x, for they have no gradients. What
    is computed a second time because of activation checkpointing is not counted.

    Args:
        shape: of the model.
        rows: tokens of each row.
        sampled: tokens with logits.
        adapters: their parameters, where they are trained and the model is frozen.
    """
    of_weight = 4 if adapters else 6
    layers = (of_weight * shape.num_hidden_layers * shape.active_layer_parameters + 6 * adapters) * sum(rows)
    head = of_weight * shape.hidden_size * shape.vocab_size * sampled
    attention = 6 * shape.attention_layers * shape.query_size * sum(length**2 for length in rows)
    return float(layers + head + attention)
