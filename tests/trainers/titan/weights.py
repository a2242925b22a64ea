"""All weights of a small model at once, and projections that are fused as they are on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from trainers.titan import model as titan_model
from trainers.titan.reference import TitanReference
from trainers.titan.trainer import TitanTrainer


def weights_of(holder: TitanTrainer | TitanReference, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Copies of the weights under Hugging Face names; on the ranks but the first none."""
    with holder.model.weights.stream(dtype) as tensors:
        return {name: tensor.clone() for name, tensor in tensors}


@contextmanager
def fused_projections(fused: bool = True) -> Iterator[None]:
    """Models that are made in here compute queries, keys and values with one matrix, or with three."""
    config = titan_model.titan_config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(titan_model, "titan_config", lambda hf, **given: config(hf, **given | {"fuse_qkv": fused}))
        yield
