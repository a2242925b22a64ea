"""All weights of a small model at once, what is the same on all ranks, and projections fused as they are on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from trainers.titan.builder import Builder
from trainers.titan.trainer import TitanTrainer


def weights_of(trainer: TitanTrainer, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Copies of the weights under Hugging Face names; on the ranks but the first none."""
    with trainer.model.weights.stream(dtype) as tensors:
        return {name: tensor.clone() for name, tensor in tensors}


def check_same(found: dict[str, Any], expected: dict[str, Any], *, rank: int = 0) -> None:
    """A rank has the metrics and logprobs of one process, and the first one, which alone has them, its weights."""
    for ours, theirs in zip(found["metrics"], expected["metrics"], strict=True):
        assert ours | {"seconds": 0} == pytest.approx(theirs | {"seconds": 0}, abs=1e-5, rel=1e-4)
    for ours, theirs in zip(found["logprobs"], expected["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    if rank == 0:
        assert found["weights"].keys() == expected["weights"].keys()
        for weight, value in expected["weights"].items():
            torch.testing.assert_close(found["weights"][weight], value, rtol=0, atol=1e-5, msg=weight)


@contextmanager
def fused_projections(fused: bool = True) -> Iterator[None]:
    """Models that are made in here compute queries, keys and values with one matrix, or with three."""
    init = Builder.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Builder, "__init__", lambda *own, **given: init(*own, **given | {"fuse_qkv": fused}))
        yield
