"""Blocks are compiled on a GPU before the first step, for short and for full micro-batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("torchtitan")
from torch._dynamo.utils import counters

from tests.trainers.titan.test_trainer import make_samples
from trainers.losses import GRPOLoss
from trainers.titan.trainer import TitanSettings, TitanTrainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU"),
]


def test_no_step_of_full_micro_batches_compiles_anything(qwen3: Path) -> None:
    """Inductor has other kernels for more than 2,559 tokens of this shape, and again for more than 5,119."""
    torch.compiler.reset()
    settings = TitanSettings(compile=True, compile_full=True, pack_length=16384, max_tokens_per_micro_batch=16384)
    trainer = TitanTrainer(qwen3, settings)
    try:
        compiled = counters["stats"]["unique_graphs"]
        for count in (8, 300, 400, 250):  # of 33 tokens on average
            trainer.train_step(make_samples(count, seed=count), GRPOLoss())
        assert counters["stats"]["unique_graphs"] == compiled
    finally:
        trainer.close()
        torch.compiler.reset()
